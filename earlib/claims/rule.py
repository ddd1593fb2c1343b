"""The rule that judges a claim: all values that it depends on lie in a region, with their intervals."""

import math
from typing import NamedTuple

SUPPORTED, REFUTED, OPEN = CLAIM_VERDICTS = ("supported", "not supported", "not decidable")


class Part(NamedTuple):
    """One value that a claim depends on, with its 95 % interval; a printed number is its own interval.

    `place` is where a measured value that sees gold stands: `id`, `variant`, `metric` and further keys of its row.
    """

    name: str
    value: float
    low: float
    high: float
    sees_gold: bool = False
    place: dict | None = None


class Finding(NamedTuple):
    """A verdict, its reason, and the deciding part: the one nearest to the edge of the region, or farthest outside."""

    verdict: str
    reason: str
    part: Part | None = None


class Undecidable(Exception):
    """Evidence that a claim needs is missing; the message names it, and the command that makes it."""


def inside(parts, above=-math.inf, below=math.inf):
    """Supported if all intervals lie inside the open region, not supported if one lies outside, else not decidable."""

    def room(part):
        return min(part.value - above, below - part.value)

    if not parts:
        raise Undecidable("there is nothing to compare")
    outside = sorted((part for part in parts if part.high < above or part.low > below), key=room)
    if outside:
        return Finding(REFUTED, listed(outside), outside[0])
    across = sorted((part for part in parts if part.low <= above or part.high >= below), key=room)
    if across:
        return Finding(OPEN, f"across the edge: {listed(across)}", across[0])
    tightest = min(parts, key=room)
    return Finding(SUPPORTED, listed([tightest]) + (f" (the least of {len(parts)})" if parts[1:] else ""), tightest)


def both(*findings):
    """All of several findings: one not supported is enough against them."""
    for verdict in (REFUTED, OPEN, SUPPORTED):
        decisive = [found for found in findings if found.verdict == verdict]
        if decisive:
            return Finding(verdict, "; ".join(found.reason for found in decisive), decisive[0].part)
    raise Undecidable("there is nothing to compare")


def listed(parts):
    """Parts in words, the first four of them."""
    each = [f"{part.name}: {value_text(part)}" for part in parts[:4]]
    return "; ".join(each + [f"and {len(parts) - 4} more"] * (len(parts) > 4))


def value_text(part):
    """Value and interval: counts whole, measured values with one digit, printed and small ones with more."""
    values = [part.value] if part.low == part.high else [part.value, part.low, part.high]
    finite = [value for value in values if math.isfinite(value)]
    digits = 1 if len(values) > 1 else 2
    if max(map(abs, finite), default=0) < 0.5:
        digits = 3
    if all(float(value).is_integer() for value in finite):
        digits = 0
    first, *ends = [f"{value:,.{digits}f}" if math.isfinite(value) else "never" for value in values]
    return first + (f" [{', '.join(ends)}]" if ends else "")


def rounds_to(part, said):
    """Finding that a value rounds to a stated number, a row of `paper.reported`."""
    half = 0.5 * 10.0 ** -len(said["printed"].partition(".")[2]) + 1e-9
    found = inside([part], above=said["value"] - half, below=said["value"] + half)
    return found._replace(reason=f"{part.name} = {part.value:.2f}, stated {said['printed']}")


def exact(name, value):
    """A printed number, or a value derived from printed numbers, as a part."""
    return Part(name, *[round(value, 6)] * 3)


def turned(part, sign):
    """The part, or its negative."""
    return part if sign > 0 else part._replace(value=-part.value, low=-part.high, high=-part.low)


def less(one, other, name):
    """A difference of two parts that were not paired: its interval contains 0 where theirs overlap."""
    ends = one.low - other.high, one.high - other.low
    return Part(name, one.value - other.value, *ends, one.sees_gold or other.sees_gold)
