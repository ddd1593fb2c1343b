"""Profiles, running notebooks, tables, figures and report pages."""

from earlib import extra

with extra("paper"):
    import jupyter_client  # noqa: F401 - every module of this room needs that extra; this one says so
