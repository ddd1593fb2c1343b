"""Comparison of two pictures as a reader sees them."""

import numpy as np
import PIL.Image

BLOCKS = 64  # each way, to which both are reduced
# Of 255 levels, the most that a block may differ. Of the 114 committed figures none differs by more than 22 where it is
# blurred by a pixel, and none by less than 51 where its blue lines or bars are orange.
LEVELS = 24


def alike(new, old, only_size=False):
    """True if both pictures (paths or files of bytes) can be read, are of one size and look the same.

    Edges may be smoothed in another way, as they are on another machine.
    """
    try:
        pair = [PIL.Image.open(one).convert("RGB") for one in (new, old)]
    except Exception:  # empty, cut short, no picture: anything unreadable
        return False
    if only_size or pair[0].size != pair[1].size:
        return pair[0].size == pair[1].size
    reduced = [np.asarray(one.resize((BLOCKS, BLOCKS), PIL.Image.Resampling.BOX), float) for one in pair]
    return bool(np.abs(reduced[0] - reduced[1]).max() <= LEVELS)
