"""Files of a pinned model: from the search path, a pip package or the publisher; nothing unverified is loaded."""

import importlib.util
import re
import sys
from contextlib import suppress
from importlib import resources
from pathlib import Path

from earlib import paths
from earlib.data import own
from earlib.data.proxies import respect_proxies

PATIENCE = 5.0  # seconds until the publisher's first answer


def registry(entry, file):
    """Pinned models by name, each an `entry` (`Encoder` or `Reranker`) made of the fields in a YAML file."""
    pinned = paths.read_yaml(resources.files("earlib.data").joinpath(file))
    return {one["name"]: entry(**one | {"weights": tuple(map(tuple, one["weights"]))}) for one in pinned}


def locate(entry, code=False, fetch=True):
    """Folder of a model's files; the checksums of its weights are verified.

    Weights whose checksum is on record may lie anywhere. Weights without one, and code that is to be run, are taken
    only from the publisher's snapshot of the pinned revision in the hub's cache, whose files are named by their
    checksums; a folder of the same name could contain anything.

    Parameters
    ----------
    entry : Encoder or Reranker
    code : bool
        Also the publisher's own code, to be run.
    fetch : bool
        Download files that are not on this machine.

    Returns
    -------
    Path

    Raises
    ------
    ValueError
        For weights with another checksum.
    ConnectionError
        If the files are not on this machine and the publisher cannot be reached.
    FileNotFoundError
        If they are not on this machine and may not be downloaded.
    """
    places = _places(entry, code)
    found = _at_hand(entry, places, code)
    if found is None:
        if not fetch:
            raise unavailable(entry.name, entry.model, entry.revision, places, entry.package)
        found = _from_publisher(entry, places, code)
    for name, expected in entry.weights:
        blob = (found / name).resolve().name  # the hub names large files by their checksums
        if expected or re.fullmatch("[0-9a-f]{64}", blob):
            own.verify(found / name, expected or blob, f"{entry.name}: {entry.model} at {entry.revision}")
    return found


def download(entry, code=False):
    """Bytes of weights that `locate` would download, 0 where all files are on this machine; nothing is verified.

    A ConnectionError, as of `locate`, if the publisher cannot be reached.
    """
    places = _places(entry, code)
    return 0 if _at_hand(entry, places, code) else _from_publisher(entry, places, code, size=True)


def _places(entry, code):
    """Folders in which files may lie whose checksums are on record."""
    if code or not all(expected for _, expected in entry.weights):
        return []
    module = importlib.util.find_spec(entry.package.replace("-", "_")) if entry.package else None  # not imported
    packaged = [Path(place) / "model" for place in module.submodule_search_locations] if module else []
    return [place / entry.model.split("/")[-1] for place in paths.model_folders()] + packaged


def _at_hand(entry, places, code):
    """Folder of this machine that has a model's files; None if none has."""
    with suppress(FileNotFoundError):  # where there is no earlier download
        places = [*places, Path(_snapshot(entry, code, local_files_only=True))]
    wanted = ["config.json", *(name for name, _ in entry.weights)]
    for place in places:
        if all((place / name).is_file() for name in wanted) and (not code or any(place.glob("*.py"))):
            return place
    return None


def _snapshot(entry, code, **options):
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.txt", "*.model", *(name for name, _ in entry.weights), *(["*.py"] if code else [])]
    return snapshot_download(entry.model, revision=entry.revision, allow_patterns=wanted, **options)


def published(model, revision, **about):
    """Ask the hub about a model at a revision, with patience and by the proxies of the environment."""
    from huggingface_hub import HfApi

    respect_proxies()
    return HfApi().model_info(model, revision=revision, timeout=PATIENCE, **about)


def _from_publisher(entry, places, code, size=False):
    """Folder of the files, downloaded, or the size of the weights in bytes."""
    from huggingface_hub import constants

    try:
        found = published(entry.model, entry.revision, files_metadata=size)
        if size:
            weights = [name for name, _ in entry.weights]
            return sum(file.size or 0 for file in found.siblings or () if file.rfilename in weights)
        print(f"downloading {entry.model} ({entry.licence}) from {constants.ENDPOINT}", file=sys.stderr)
        return Path(_snapshot(entry, code))
    except Exception as error:  # the hub's client raises errors of several libraries
        raise unavailable(entry.name, entry.model, entry.revision, places, entry.package, error) from error


def unavailable(name, model, revision, places, package="", error=None):
    """Error for files that are in none of the places, nor to be had from the publisher unless no error is given."""
    from huggingface_hub import constants

    told = f"{name}: no files in {' or '.join(map(str, places)) or constants.HF_HUB_CACHE}"
    if error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        told += f", and {model} cannot be downloaded from {constants.ENDPOINT} ({reason})"
    install = f"`pip install {package}`, or " if package else ""
    command = f"{install}`hf download {model} --revision {revision}` where there is a network and copy the hub's cache"
    put = "files in any other folder cannot be verified and are not used"
    if places:
        put = f"or put the files into {places[0]}, or name the folder that contains {places[0].name} in EARLIB_MODELS"
    return (ConnectionError if error else FileNotFoundError)(f"{told}. Run {command} (HF_HOME); {put}")
