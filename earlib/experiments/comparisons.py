"""Rows of a record: systems against a baseline, on the same questions."""

import numpy as np

from earlib.core.config import READINGS, VARIANTS, near
from earlib.experiments.measures import MEASURES, difference, only, summary
from earlib.experiments.runs import answers, chosen_run, distinct, run_control, run_tuned, run_variant
from earlib.experiments.settings import Setting, benchmark, scopes


def compare(setting, names, baseline, **changes):
    """Run variants and controls, each against the same baseline on the same questions.

    Parameters
    ----------
    setting : Setting
    names : sequence of str
        Keys of `config.VARIANTS`, "ceiling", or "equal_calls_2" and the like.
    baseline : str
        The one that all are compared with.
    **changes
        Hyper-parameters that differ from the paper's defaults, for all.

    Returns
    -------
    list of dict
        Rows as in `rows`; those of the baseline come without a difference.
    """
    reached = {name: answers(setting, name, **changes) for name in (baseline, *names)}
    values = {name: one.values for name, one in reached.items()}
    return compared(setting, values, reached[baseline].queries, baseline, names)


def compared(setting, values, queries, baseline, names=None, **keys):
    """Rows of several systems, each against the same baseline on the same questions.

    Parameters
    ----------
    setting : Setting
    values : dict of str to numpy.ndarray
        Of each system, the baseline among them, as in `rows`.
    queries : numpy.ndarray
        Question numbers, `[R, E]`.
    baseline : str
    names : sequence of str, optional
        The systems that get rows; default: all.
    **keys
        As in `rows`.

    Returns
    -------
    list of dict
        Those of the baseline come without a difference.
    """
    made = []
    for name in names or values:
        asks = name.startswith("equal_calls") or (name in VARIANTS and VARIANTS[name].explorer)
        against = None if name == baseline else values[baseline]
        made += rows(setting, name, values[name], queries, against, sees_gold=asks, **keys)
    return made


def by_category(setting, values, queries, baseline, categories, **keys):
    """Rows as in `compared` of all questions, with the key `category` "all types", and of each type of question alone.

    Parameters as in `compared`; `categories` are types of questions.
    """
    types = np.array([query.category for query in benchmark(setting.dataset).asked])
    made = []
    for category in ("all types", *categories):
        wanted = np.full(len(types), True) if category == "all types" else types == category
        part = {name: only(one, queries, wanted)[0] for name, one in values.items()}
        kept = only(values[baseline], queries, wanted)[1]
        made += compared(setting, part, kept, baseline, category=category, **keys)
    return made


def vary(setting, name, choices, usual):
    """Run a variant with other hyper-parameters, each against the usual ones on the same questions.

    Parameters
    ----------
    setting : Setting
    name : str
        A key of `config.VARIANTS`.
    choices : list of dict
        Hyper-parameters; equal ones are run and shown once.
    usual : dict
        The hyper-parameters that all are compared with.

    Returns
    -------
    list of dict
        Rows as in `rows`, with the hyper-parameters as further keys; those of the usual ones have no difference.
    """
    against = run_variant(setting, name, **usual).values
    made = []
    for choice in distinct(choices):
        values, queries, _ = run_variant(setting, name, **choice)
        made += rows(setting, name, values, queries, None if choice == usual else against, **choice)
    return made


def paired(**grid):
    """Combinations of hyper-parameters: lists of equal length go together, a single value goes with every other.

    >>> paired(precision=[88, 70], recall=[86])
    [{'precision': 88, 'recall': 86}, {'precision': 70, 'recall': 86}]

    Raises
    ------
    ValueError
        If two lists have different lengths and neither has one value.
    """
    length = max(map(len, grid.values()))
    if any(len(values) not in (1, length) for values in grid.values()):
        told = ", ".join(f"{name} has {len(values)}" for name, values in grid.items())
        raise ValueError(f"expected lists of equal length, or single values: {told}")
    return [{name: values[at % len(values)] for name, values in grid.items()} for at in range(length)]


def curve(setting, name, chosen=None, **changes):
    """Recall@5 of adapter-only inference along training, each point against the untrained adapter.

    Only the last difference is tested: the others are its way there.

    Parameters
    ----------
    setting : Setting
        `evaluate_every` says how often.
    name : str
        A key of `config.VARIANTS`.
    chosen : list of dict, optional
        Hyper-parameters that each seed has for itself.
    **changes
        Hyper-parameters that differ from the paper's defaults.

    Returns
    -------
    list of dict
        Rows as in `rows`, with the further key `training_queries`.
    """
    result = chosen_run(setting, name, chosen or [{}] * setting.seeds, **changes)
    made, start = [], result.adapter[0, :1]
    for point, (seen, values) in enumerate(zip(result.seen, result.adapter, strict=True), 1):
        at = {"tested": point == len(result.seen), "training_queries": int(seen)}
        made += rows(setting, name, values[:1], result.queries, start, **at)
    return made


def readings(options):
    """The readings of some questions that the paper leaves open, the default reading first.

    Parameters
    ----------
    options : list of str
        Their names, or "all".

    Raises
    ------
    ValueError
        For a name that no reading has.
    """
    default, *others = READINGS
    known = list(dict.fromkeys(reading.option for reading in others))
    for option in options:
        if option != "all" and option not in known:
            told = ", ".join(known)
            raise ValueError(f"options: unknown {option!r}{near(option, known)}; known: all, {told}")
    return default, [reading for reading in others if "all" in options or reading.option in options]


def under(setting, reading, names, baseline=None):
    """Recall@5 of some systems under one reading of the paper, each against the same system under the default one.

    A reading of Recall@5 itself gives other values of the same slates.

    Parameters
    ----------
    setting : Setting
    reading : config.Reading
    names : sequence of str
        Keys of `config.VARIANTS`, or controls. Those that the reading does not concern stay as they are, but for the
        setting and the critic, which are the same for all.
    baseline : str, optional
        Compare with this system under the same reading instead.

    Returns
    -------
    list of dict
        Rows as in `rows`, with the further keys `option` and `choice`. A system that diverges under the reading has
        a row without a value. Where the questions differ from the default's (another split) there is no difference.
    """
    of_reading = Setting(**{**setting.model_dump(), **reading.setting})
    keys = {"option": reading.option, "choice": reading.choice}

    def reached(name, reading, setting):
        if name not in VARIANTS:
            critic = {"errors": reading.changes["errors"]} if "errors" in reading.changes else {}
            return run_control(setting, name, **critic)
        if name not in reading.concerns:
            return run_variant(setting, name)
        if reading.rates:
            return run_tuned(setting, name, reading.rates, **reading.changes)
        return run_variant(setting, name, **reading.changes)

    made = []
    for name in names:
        try:
            values, queries, _ = reached(name, reading, of_reading)
            against = reached(baseline, reading, of_reading) if baseline else reached(name, READINGS[0], setting)
        except FloatingPointError as error:
            reason = str(error).partition(" (")[0]
            told = {"dataset": setting.dataset, "encoder": setting.encoder, "split": of_reading.split, "variant": name}
            made.append({**told, "metric": reading.measure, **keys, "measured": None, "reason": reason})
            continue
        compares = reading != READINGS[0] or baseline
        same = compares and np.array_equal(queries, against.queries)
        measure = MEASURES.index(reading.measure)
        theirs = measure if baseline else MEASURES.index(READINGS[0].measure)
        told = {"sees_gold": name in VARIANTS and VARIANTS[name].explorer, "measures": (reading.measure,), **keys}
        other = against.values[[theirs]] if same else None
        made += rows(of_reading, name, values[[measure]], queries, other, **told)
    return made


def rows(setting, variant, values, queries, baseline=None, *, measures=MEASURES, scale=100, tested=True, **keys):
    """Rows of a record: one a measure, with its interval and the paired difference to a baseline.

    Parameters
    ----------
    setting : Setting
    variant : str
    values, queries : numpy.ndarray
        As `run_variant` returns them.
    baseline : numpy.ndarray, optional
        Values of the baseline on the same questions.
    measures : sequence of str
        Names of the measures; as many of them as there are values.
    scale : float
        The unit in which they are told, as in `measures.summary`.
    tested : bool
        Whether the difference has a permutation test.
    **keys
        Further keys and fields of the rows.

    Returns
    -------
    list of dict
    """
    made = []
    of_scope = scopes(setting.dataset)
    for number, measure in enumerate(measures[: len(values)]):
        row = {"dataset": setting.dataset, "encoder": setting.encoder, "split": setting.split, "variant": variant}
        row |= {"metric": measure, **keys, **summary(values[number], queries, of_scope, scale)}
        if baseline is not None:
            gap = difference(values[number], baseline[number], queries, of_scope, scale, tested)
            told = ("low", "high", "scope_low", "scope_high")
            row |= {f"difference_{end}": gap[end] for end in told if end in gap}
            row |= {"difference": gap["measured"], "p": gap.get("p")}
        made.append(row)
    return made
