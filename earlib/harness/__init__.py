"""Profiles, running notebooks, tables, figures and report pages."""

import argparse

from earlib import extra

with extra("paper"):
    import jupyter_client  # noqa: F401 - every module of this room needs that extra; this one says so


def at_least(least, kind=int):
    """Type of an option of a command: a number that is not smaller, nor NaN."""

    def read(text):
        if not kind(text) >= least:
            raise argparse.ArgumentTypeError(f"expected {least} or more")
        return kind(text)

    read.__name__ = kind.__name__  # as argparse names what is no number
    return read
