"""earlib: an executable paper on Exploratory and Assimilating Reflection (EAR)."""

__version__ = "0.1.0"
