"""Where everything lies: the only module that knows a folder, and the one way to write a file.

In a checkout, everything lies in its folder. In an installed wheel, the notebooks and profiles lie in the package;
results, unfinished work, data and weights go to the folder that the program was started in, and what can be computed
again to the user's cache folder. Every location can be moved by an environment variable. In a checkout none depends on
the current directory, so that a notebook finds the same files under papermill, nbval and JupyterLab.
"""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import yaml

_PACKAGE = Path(__file__).resolve().parent
INSTALLED = (_PACKAGE / "notebooks").is_dir()  # a wheel: a checkout has them beside the package
ROOT = Path(os.environ.get("EARLIB_ROOT") or (Path.cwd() if INSTALLED else _PACKAGE.parent))


def _folder(variable, default):
    return Path(os.environ.get(variable) or ROOT / default).expanduser()


def cache():
    """Folder of everything that can be computed again: embeddings and runs (`EARLIB_CACHE`)."""
    return _folder("EARLIB_CACHE", platformdirs.user_cache_path("earlib", False) if INSTALLED else "cache")


def results():
    """Folder of executed notebooks, records and figures, which only the runner writes (`EARLIB_RESULTS`)."""
    return _folder("EARLIB_RESULTS", "results")


def by_hand():
    """Folder of what notebooks save that the runner did not start: JupyterLab, VS Code, plain papermill."""
    return build() / "by-hand"


def reference():
    """Folder of the committed results that new ones are compared with; never moved. A wheel has none."""
    return (_PACKAGE if INSTALLED else ROOT) / "results"


def records():
    """Folder of finished records, for what draws on the results of others (`EARLIB_RECORDS`): the committed ones."""
    return _folder("EARLIB_RECORDS", results() if INSTALLED else reference())


def notebooks():
    """Folder of the notebooks' sources."""
    return (_PACKAGE if INSTALLED else ROOT) / "notebooks"


def profiles():
    """Folder of the profiles, one YAML file each."""
    return notebooks() / "profiles"


def build():
    """Folder of unfinished work; nothing in it is ever read as a result (`EARLIB_BUILD`)."""
    return _folder("EARLIB_BUILD", "build")


def unchanged():
    """Folder of what a run made where the results in place say the same and stay."""
    return build() / "unchanged"


def data_folders():
    """Folders searched for data files, in order: `EARLIB_DATA`, then `data/`."""
    return _search("EARLIB_DATA", "data")


def model_folders():
    """Folders searched for model weights, in order: `EARLIB_MODELS`, then `models/`."""
    return _search("EARLIB_MODELS", "models")


def model_server():
    """The environment of the server for language models on this machine, which `make llm` builds."""
    return ROOT / ".venv-llm"


def _search(variable, default):
    chosen = os.environ.get(variable)
    return ([Path(chosen).expanduser()] if chosen else []) + [ROOT / default]


def shown(path):
    """The path as messages name it: relative to the current directory, unless the whole path is shorter."""
    path = os.path.abspath(path)
    return min(os.path.relpath(path), path, key=len)


def save_result(name, content):
    """Write what a notebook saves: for the runner, which publishes it when every cell has passed, else `by_hand()`.

    The runner sets `EARLIB_RUNNING` for its notebooks; a user's own `EARLIB_RESULTS` alone is no run.
    """
    write_atomically((results() if os.environ.get("EARLIB_RUNNING") else by_hand()) / name, content)


def announce(profile):
    """By hand, print where the notebook saves: once, in a cell that nbval does not compare."""
    if not os.environ.get("EARLIB_RUNNING"):
        print(f"run by hand: saved in {shown(by_hand() / profile)}; the results stay as they are")


def write_atomically(path, content):
    """Write a file so that a reader, or a kill at any moment, sees the old content or the new, never a part.

    Parameters
    ----------
    path : Path
        The file to write; its folder is made if it is missing.
    content : bytes or str
        What to write; text is encoded as UTF-8.

    Raises
    ------
    OSError
        If the folder cannot be written or the disk is full; the message names the file, the old content stays.
    """
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path):
    """As `write_atomically`, for content that is written piece by piece.

    Parameters
    ----------
    path : Path

    Yields
    ------
    file
        To write bytes to. It takes the place of the old content when the block ends, and is gone if the block fails.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            with Path(folder, path.name).open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, path)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error


def read_yaml(file):
    """Content of a YAML file of the package, read by libyaml where that is at hand, ten times as fast."""
    return yaml.load(file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
