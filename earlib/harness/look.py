"""The look of figures, from `look.yaml` and `earlib.mplstyle`: one colour, line and marker a system."""

import re
from importlib.resources import files
from pathlib import Path

import matplotlib
import seaborn

from earlib import paths

COLOURS = seaborn.color_palette("colorblind").as_hex()
GREY, INK = "#555555", "#222222"
DRAWN = paths.read_yaml(files("earlib.harness").joinpath("look.yaml"))
VERDICT_STYLES = DRAWN["verdicts"]


def _dashes(line):
    return (0, tuple(line)) if isinstance(line, list) else line


LINES = tuple(map(_dashes, DRAWN["lines"]))
STYLES = {name: (colour, _dashes(line), marker) for name, (colour, line, marker) in DRAWN["systems"].items()}

# All settings, so that a reader's own never change a committed figure.
LOOK = matplotlib.rc_params_from_file(Path(__file__).with_name("earlib.mplstyle"), use_default_template=True)
LOOK = {key: value for key, value in LOOK.items() if not key.startswith("backend")}


def styles(names):
    """Colour, line style and marker of each name; those of systems are fixed, other names have other colours.

    The equal-call control has one style whatever its number of calls; where several are drawn, the first has it.
    """
    names, found = list(dict.fromkeys(names)), {}
    for name in names:
        style = of_system(name)
        if style and style not in found.values():
            found[name] = style
    taken = [*zip(*found.values(), strict=True)] or [()] * 3
    parts = zip((DRAWN["colours"], LINES, DRAWN["markers"]), taken, strict=True)
    free = [[one for one in every if one not in used] for every, used in parts]
    for count, name in enumerate(name for name in names if name not in found):
        found[name] = tuple(every[count % len(every)] for every in free)
    return found


def of_system(name):
    """Style of a system, None of anything else."""
    return STYLES.get(re.sub(r"^(equal_calls)_\d+$", r"\1", str(name)))
