"""Provenance of a record: data, encoder, versions and the commit of the source."""

import subprocess
from importlib import metadata

from earlib import __version__, devices, paths

PACKAGES = ("torch", "numpy", "scipy", "pandas", "sentence-transformers", "transformers")


def provenance(dataset, encoder, **more):
    """Fingerprints of the data and the encoder, package versions, and the commit of the source.

    `commit` is the last one that touched `earlib/` or `notebooks/` (a record cannot name the commit that contains it),
    "<hash> and local changes" if they were changed since, None without git or outside a checkout. Nothing else of
    machine or time is kept.

    Parameters
    ----------
    dataset, encoder : str or dict
        Fingerprint, or fingerprints by name.
    **more
        Anything else that identifies the result.

    Returns
    -------
    dict
    """
    if devices.default() != "cpu":
        more["device"] = devices.default()
    versions = {"earlib": __version__} | {name: metadata.version(name) for name in PACKAGES}
    return {"dataset": dataset, "encoder": encoder, **more, "packages": versions, "commit": _commit()}


def version_of(record):
    """The version of earlib that made a record; None if it does not say."""
    return record.get("provenance", {}).get("packages", {}).get("earlib")


def departures(record, profile, version=__version__):
    """Words for each other profile or version of earlib than these by which a record was made."""
    pairs = (("profile", record["profile"], profile), ("version", version_of(record), version))
    return [f"of {what} {there}, not {here}" for what, there, here in pairs if there != here]


def _commit():
    def git(*arguments):
        command = ["git", "-C", str(paths.ROOT), *arguments, "--", "earlib", "notebooks"]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()

    if paths.INSTALLED:  # a repository around the current folder is another's
        return None
    try:
        return git("log", "-1", "--format=%H") + (" and local changes" if git("status", "--porcelain") else "") or None
    except (OSError, subprocess.SubprocessError):
        return None
