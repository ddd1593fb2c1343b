"""The rule that judges a claim: all values that it depends on lie in a region, with their intervals."""

import math
from typing import NamedTuple

import numpy as np

CLAIM_VERDICTS = ("supported", "not supported", "depends on the reading", "not decidable")
SUPPORTED, REFUTED, DEPENDS, OPEN = CLAIM_VERDICTS
OPPOSITE = {SUPPORTED: REFUTED, REFUTED: SUPPORTED}
EQUIVALENT = 2.0  # percentage points within which two systems count as equally good


class Part(NamedTuple):
    """One value that a claim depends on, with its 95 % interval; a printed number is its own interval.

    `place` is where a measured value that sees gold stands: `id`, `variant`, `metric` and further keys of its row.
    `sampled` names what more of would make the interval narrower, and `n` is the number of questions of a seed.
    `comparison` is the same for the same paired difference wherever it is recorded, and `p` its raw p-value; `pair` is
    the two systems and the sign of the difference, where other readings of the paper may hold it too.
    """

    name: str
    value: float
    low: float
    high: float
    sees_gold: bool = False
    place: dict | None = None
    sampled: str = ""
    n: int | None = None
    p: float | None = None
    comparison: str | None = None
    pair: tuple | None = None


class Finding(NamedTuple):
    """A verdict, its reason and the deciding part; `pieces` are the findings on single parts that it was drawn from.

    `room` is the distance of the part's value to the nearest edge of its `region`, negative outside. Without a region
    a finding is not tried under other readings of the paper.
    """

    verdict: str
    reason: str
    part: Part | None = None
    room: float = math.inf
    pieces: tuple = ()
    name: str = ""
    region: tuple | None = None
    readings: str | None = None

    @property
    def told(self):
        """The verdict on a part with its value, or why it is open."""
        readings = f" ({self.readings} readings)" if self.readings else ""
        return f"{self.verdict}{readings}: {value_text(self.part) if self.part else self.reason}"


class Undecidable(Exception):
    """Evidence that a claim needs is missing; the message names it, and the command that makes it."""


def judged(part, above=-math.inf, below=math.inf, around=None):
    """The finding on one part: in or out of the open region; one within it must not exclude a stated number either."""
    room = min(part.value - above, below - part.value)
    found = Finding(OPEN, listed([part]), part, room, name=part.name, region=(above, below))
    if part.high < above or part.low > below:
        return found._replace(verdict=REFUTED)
    if not (above < part.low and part.high < below):
        return found._replace(reason=found.reason + _needed(part, above, below, room > 0))
    if around is not None and not part.low <= around <= part.high:
        reason = f"{found.reason} excludes the stated {around}"
        return found._replace(verdict=REFUTED, reason=reason, region=None)
    return found._replace(verdict=SUPPORTED)


def _needed(part, above, below, within):
    """Words for the bound that an interval contains, and for about how much data would exclude it."""
    bounds = [bound for bound in (above, below) if part.low <= bound <= part.high]
    told = f", bound {' and '.join(f'{bound:g}' for bound in bounds)}"
    if not part.sampled or not all(map(math.isfinite, part[1:4])):
        return told
    if part.value in bounds:
        return f"{told}, on which the value lies"
    sides = [(part.value - part.low if bound < part.value else part.high - part.value, bound) for bound in bounds]
    factors = [(side / (part.value - bound)) ** 2 for side, bound in sides]  # half widths shrink with the root of n
    factor = max(factors) if within else min(factors)
    of_seed = f" ({_rounded(factor * part.n):,.0f} a seed in place of {part.n})" if part.n else ""
    return f"{told}, decided by about {_rounded(factor):,g} times as many {part.sampled}{of_seed}"


def _rounded(number):
    """The number with two digits that count."""
    return float(f"{number:.1e}")


def both(*findings):
    """All of several findings: one not supported is enough against them, and else all have to be decided."""
    pieces = tuple(piece for found in findings for piece in (found.pieces or (found,)))
    if not pieces:
        raise Undecidable("there is nothing to compare")
    most = min(map(_rank, pieces))
    decisive = sorted((piece for piece in pieces if _rank(piece) == most), key=lambda piece: piece.room)
    least, reasons = decisive[0], [*dict.fromkeys(piece.reason for piece in decisive)]
    if least.verdict == SUPPORTED and len(pieces) > 1:
        reasons = [f"{reasons[0]} (the least of {len(pieces)})"]
    reasons = reasons[:4] + [f"and {len(reasons) - 4} more"] * (len(reasons) > 4)
    decided = sorted((piece for piece in pieces if piece.verdict != OPEN), key=lambda piece: piece.room)
    if least.part is None and decided:  # what is decided is shown, but does not decide the whole
        reasons.append(f"so far decided: {decided[0].reason} ({decided[0].verdict})")
        least = decided[0]._replace(verdict=OPEN)
    return least._replace(reason="; ".join(reasons), pieces=pieces)


def _rank(piece):
    """Order of verdicts: a part against a claim comes first, then one that another reading saves, then an open one."""
    saved = piece.verdict == DEPENDS and piece.room < 0
    return (REFUTED, None, OPEN, DEPENDS, SUPPORTED).index(None if saved else piece.verdict)


def against_control(part, percent):
    """Verdict on a system minus the equal-call control: equivalent, better, worse, or not distinguishable."""
    if percent and part.low > -EQUIVALENT and part.high < EQUIVALENT:
        return "equivalent"
    return "better" if part.low > 0 else "worse" if part.high < 0 else "not distinguishable"


def holm(p):
    """Holm's step-down correction of the p-values of one family (Holm 1979)."""
    order = np.argsort(p)
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1)).clip(max=1)
    return corrected


def listed(parts):
    """Parts in words."""
    return "; ".join(f"{part.name}: {value_text(part)}" for part in parts)


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
    found = judged(part, said["value"] - half, said["value"] + half)
    return found._replace(reason=f"{part.name} = {part.value:.2f}, stated {said['printed']}")


def exact(name, value):
    """A printed number, or a value derived from printed numbers, as a part."""
    return Part(name, *[round(value, 6)] * 3)


def turned(part, sign):
    """The part, or its negative."""
    if sign > 0:
        return part
    pair = part.pair and (*part.pair[:2], -part.pair[2])
    return part._replace(value=-part.value, low=-part.high, high=-part.low, pair=pair)


def per(part, base, times=1):
    """The part in so many times of a base."""
    return part._replace(**{end: times * getattr(part, end) / base for end in ("value", "low", "high")})


def less(one, other, name):
    """A difference of two parts that were not paired: its interval contains 0 where theirs overlap."""
    ends = one.low - other.high, one.high - other.low
    sees_gold = one.sees_gold or other.sees_gold
    return Part(name, one.value - other.value, *ends, sees_gold, sampled=one.sampled, n=one.n)
