"""earlib: an executable paper on Exploratory and Assimilating Reflection (EAR)."""

import warnings

# Libraries that import tqdm.auto in a notebook make it ask for widgets, for bars that this package never shows.
warnings.filterwarnings("ignore", message="IProgress not found")

__version__ = "0.1.0"
