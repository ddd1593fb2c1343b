"""Comparisons: rows of a record with the measures of systems and their paired differences to a baseline."""

import numpy as np

from earlib import paper
from earlib.core.config import VARIANTS, Config, near
from earlib.experiments.intervals import difference, summary
from earlib.experiments.measures import MEASURES, only
from earlib.experiments.runs import answers, distinct_choices, tuned, variant_run
from earlib.experiments.settings import Setting, benchmark, held_out

READINGS = tuple(paper.alternatives())


def rows(setting, variant, values, queries, baseline=None, *, measures=MEASURES, scale=100, tested=True, **keys):
    """Rows of a record: one a measure, with its interval and its paired difference to a baseline.

    Where a seed evaluates no question that counts, a row has the reason in place of a value.

    Parameters
    ----------
    setting : Setting
    variant : str
    values, queries, baseline : numpy.ndarray
        Values of the system, `[m, R, E]`, question numbers, `[R, E]`, and values of the baseline, if any, as in
        `runs.Answers`.
    measures : sequence of str
        Names of the m measures; further names are ignored.
    scale : float
        Unit of the rows, as in `intervals.summary`.
    tested : bool
        Whether the difference has a permutation test.
    **keys
        Further keys and fields of the rows.
    """
    made = []
    scopes = np.unique([query.scope for query in benchmark(setting.dataset).asked], return_inverse=True)[1]
    for number, measure in enumerate(measures[: len(values)]):
        if np.isnan(values[number]).all(1).any():
            made.append(_dash(setting, variant, measure, "a seed evaluates no question with gold memories", **keys))
            continue
        row = _about(setting, variant, measure, **keys) | summary(values[number], queries, scopes, scale)
        if baseline is not None:
            gap = difference(values[number], baseline[number], queries, scopes, scale, tested)
            row |= {"difference": gap["measured"], "difference_low": gap["low"], "difference_high": gap["high"]}
            row["p"] = gap.get("p")
        made.append(row)
    return made


def _about(setting, variant, measure, **keys):
    about = {"dataset": setting.dataset, "encoder": setting.encoder, "split": setting.split, "variant": variant}
    return {**about, "metric": measure, **keys}


def _dash(setting, variant, measure, reason, **keys):
    return _about(setting, variant, measure, **keys) | {"measured": None, "reason": reason}


def _unsplittable(setting):
    """Reason why a benchmark cannot be split as a setting asks; None if it can."""
    if setting.split == "fixed":
        try:
            held_out(setting)
        except ValueError as error:
            return str(error)
    alone = setting.split == "conversation" and len({one.scope for one in benchmark(setting.dataset).asked}) == 1
    return "one conversation alone: none is left to evaluate" if alone else None


def _too_few(name, changes):
    """Reason why an equal-call control has too few candidates; None if it has enough, or for another system."""
    config, calls = Config(**changes), name.removeprefix("equal_calls_")
    shown = int(calls) * config.slate_size if calls.isdigit() else 0
    return f"{calls} calls need {shown} candidates, K is {config.depth}" if shown > config.depth else None


def compare(setting, names, baseline, **changes):
    """Run systems, named as in `runs.answers`, and compare each with the same baseline on the same questions.

    Hyper-parameters of all that differ from the paper's defaults are keywords. Returns rows as from `compared`; a
    benchmark of one conversation has none by conversation, which is the reason in its rows.
    """
    whole = _unsplittable(setting) or _too_few(baseline, changes)
    reasons = {name: whole or _too_few(name, changes) for name in names}
    made = [_dash(setting, name, measure, why) for name, why in reasons.items() if why for measure in MEASURES]
    names = [name for name in names if not reasons[name]]
    if not names:
        return made
    reached = {name: answers(setting, name, **changes) for name in (baseline, *names)}
    values = {name: one.values for name, one in reached.items()}
    return compared(setting, values, reached[baseline].queries, baseline, names) + made


def compared(setting, values, queries, baseline, names=None, **keys):
    """Rows of several systems, each compared with the same baseline on the same questions; `values` by system.

    `names` are the systems that get rows, by default all; those of the baseline have no difference.
    """
    made = []
    for name in names or values:
        asks = name.startswith("equal_calls") or (name in VARIANTS and VARIANTS[name].explorer)
        against = None if name == baseline else values[baseline]
        made += rows(setting, name, values[name], queries, against, sees_gold=asks, **keys)
    return made


def by_category(setting, values, queries, baseline, categories, **keys):
    """Rows as from `compared` for all questions (`category` "all types"), and for each of some question types."""
    types = np.array([query.category for query in benchmark(setting.dataset).asked])
    made = []
    for category in ("all types", *categories):
        wanted = np.full(len(types), True) if category == "all types" else types == category
        part = {name: only(one, queries, wanted)[0] for name, one in values.items()}
        kept = only(values[baseline], queries, wanted)[1]
        made += compared(setting, part, kept, baseline, category=category, **keys)
    return made


def vary(setting, name, choices, usual):
    """Run a variant with several choices of hyper-parameters, and compare each with the usual ones.

    The rows are as from `rows`, with the hyper-parameters as further keys; those of the usual ones have no difference.
    """
    against, made = answers(setting, name, **usual).values, []
    for choice in distinct_choices(choices):
        values, queries, _ = answers(setting, name, **choice)
        made += rows(setting, name, values, queries, None if choice == usual else against, **choice)
    return made


def paired(**grid):
    """Combine hyper-parameters: lists of equal length are zipped, a single value goes with every other.

    Lists of different lengths are a ValueError.

    >>> paired(precision=[88, 70], recall=[86])
    [{'precision': 88, 'recall': 86}, {'precision': 70, 'recall': 86}]
    """
    length = max(map(len, grid.values()))
    if any(len(values) not in (1, length) for values in grid.values()):
        found = ", ".join(f"{name} has {len(values)}" for name, values in grid.items())
        raise ValueError(f"expected lists of equal length, or single values: {found}")
    return [{name: values[at % len(values)] for name, values in grid.items()} for at in range(length)]


def curve(setting, name, chosen=None, **changes):
    """Recall@5 of adapter-only inference along training, each point compared with the untrained adapter.

    Only the last difference is tested. Parameters as in `runs.answers`; `Setting.evaluate_every` sets the points.
    """
    result = variant_run(setting, name, chosen, **changes)
    made, start = [], result.adapter[0, :1]
    for point, (seen, values) in enumerate(zip(result.seen, result.adapter, strict=True), 1):
        at = {"tested": point == len(result.seen), "training_queries": int(seen)}
        made += rows(setting, name, values[:1], result.queries, start, **at)
    return made


def initial_drop(setting, name, chosen=None, **changes):
    """How far the mean of the first two evaluations of a curve lies below its start: parameters as in `curve`."""
    result = variant_run(setting, name, chosen, **changes)
    early = result.adapter[0, :1] - result.adapter[1:3, :1].mean(0)
    return rows(setting, name, early, result.queries, measures=("initial_drop",))


def readings(options):
    """The default reading of the paper, and those of some options (or "all"); ValueError for an unknown one."""
    default, *others = READINGS
    known = list(dict.fromkeys(reading.option for reading in others))
    for option in options:
        if option != "all" and option not in known:
            raise ValueError(f"options: unknown {option!r}{near(option, known)}; known: all, {', '.join(known)}")
    return default, [reading for reading in others if "all" in options or reading.option in options]


def under(setting, reading, names, baseline=None):
    """Recall@5 of systems under one reading of the paper, each compared with itself under the default reading.

    Parameters
    ----------
    setting : Setting
    reading : paper.Reading
    names : sequence of str
        As in `runs.answers`. Systems that the reading does not concern keep their hyper-parameters; the setting and the
        critic change for all.
    baseline : str, optional
        Compare with this system under the same reading instead.

    Returns
    -------
    list of dict
        As from `rows`, with the further keys `option` and `choice`; without a value for a system that diverges, and
        without a difference if the questions differ from the default's (another split).
    """
    of_reading = Setting(**{**setting.model_dump(), **reading.setting})
    keys = {"option": reading.option, "choice": reading.choice}
    measure, theirs = (MEASURES.index(one.measure) for one in (reading, reading if baseline else READINGS[0]))
    if reason := _unsplittable(of_reading):
        return [_dash(of_reading, name, reading.measure, reason, **keys) for name in names]
    made = []
    for name in names:
        try:
            values, queries, _ = _under(of_reading, reading, name)
            against = _under(of_reading, reading, baseline) if baseline else _under(setting, READINGS[0], name)
        except FloatingPointError as error:
            made.append(_dash(of_reading, name, reading.measure, str(error).partition(" (")[0], **keys))
            continue
        same = (reading != READINGS[0] or baseline) and np.array_equal(queries, against.queries)
        other = against.values[[theirs]] if same else None
        keys["sees_gold"] = name in VARIANTS and VARIANTS[name].explorer
        made += rows(of_reading, name, values[[measure]], queries, other, measures=(reading.measure,), **keys)
    return made


def _under(setting, reading, name):
    """Answers of a system under a reading; learning rates are tuned if the reading asks for it."""
    if name not in VARIANTS:
        return answers(setting, name, **{key: value for key, value in reading.changes.items() if key == "errors"})
    if name not in reading.concerns:
        return answers(setting, name)
    rates = [{"learning_rate": rate} for rate in reading.rates]
    chosen = tuned(setting, name, rates, **reading.changes)[0] if rates else None
    return answers(setting, name, chosen, **reading.changes)
