"""earlib: an executable paper on Exploratory and Assimilating Reflection (EAR)."""

import warnings
from contextlib import contextmanager

# Libraries that import tqdm.auto in a notebook make it ask for widgets, for bars that this package never shows.
warnings.filterwarnings("ignore", message="IProgress not found")

__version__ = "0.1.0"


@contextmanager
def extra(name):
    """Imports of what an extra of this package brings; if one is missing, the error names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}: pip install 'earlib[{name}]'", name=error.name) from error
