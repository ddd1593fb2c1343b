"""Distances of diagnostic queries to episodic and semantic memories (Tables 11 and 12), before and after an adapter.

One matrix can move all queries alike. What tells the two kinds of queries apart is therefore the separation, the mean
Delta of the queries that require semantic memories less that of those that require episodic ones: a shift that all
queries share leaves it as it is.
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
import yaml
from scipy.stats import permutation_test, ttest_1samp, ttest_ind

from earlib import paper
from earlib.core import randomness
from earlib.core.adapter import Adapter
from earlib.core.ordering import best
from earlib.data.encoders import encode

MEMORIES = Path(__file__).parent.parent / "data" / "diagnostic.yaml"
KINDS = ("episodic", "semantic")
FIRST = 5  # memories looked at


class Diagnostic(NamedTuple):
    """Q queries of the paper and M memories written for them."""

    queries: tuple  # texts
    requires: np.ndarray  # [Q] the kind of memory that a query requires, "episodic" or "semantic"
    memories: tuple  # texts
    ids: tuple
    stores: np.ndarray  # [M] the kind of a memory
    gold: np.ndarray  # [Q, M] bool, which memories answer a query

    def fingerprint(self):
        """SHA-256 (hex) over everything."""
        content = [value.tolist() if isinstance(value, np.ndarray) else value for value in self]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def frame(self):
        """The queries, what each requires, and the memories that answer it, for people to read."""
        answers = [" ".join(np.array(self.memories)[found]) for found in self.gold]
        columns = {"query": self.queries, "requires": self.requires, "answered by": answers}
        return pd.DataFrame(columns, index=range(1, len(self.queries) + 1))


class Distances(NamedTuple):
    """What R adapters make of Q queries."""

    d_e: np.ndarray  # [R, Q] mean cosine distance to the episodic memories
    d_s: np.ndarray  # [R, Q] to the semantic ones
    recalled: np.ndarray  # [R, Q] whether all gold memories are among the first five of all memories, 0 or 1

    @property
    def delta(self):
        """d_e - d_s: below 0 the query is closer to episodic memories, above it to semantic ones."""
        return self.d_e - self.d_s


def load(path=MEMORIES):
    """The paper's diagnostic queries with the memories of a file.

    Parameters
    ----------
    path : Path, optional
        A file in the form of `diagnostic.yaml`, the default.

    Returns
    -------
    Diagnostic

    Raises
    ------
    ValueError
        If an id occurs twice, a store is unknown, or a query names no memory, one that is not there, or one of the
        other kind than the paper says.
    """
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    memories, gold = content["memories"], content["gold"]
    stores = {memory["id"]: memory["store"] for memory in memories}
    if len(stores) < len(memories) or not set(stores.values()) <= set(KINDS):
        raise ValueError(f"{path}: memories: expected ids that occur once, and stores named {' or '.join(KINDS)}")
    asked = sorted(paper.reported("tab11"), key=lambda row: row["query"])
    for row in asked:
        named = gold.get(row["query"]) or []
        if not named or any(stores.get(id) != row["memory"] for id in named):
            raise ValueError(
                f"{path}: gold.{row['query']}: expected ids of {row['memory']} memories, found {named}; "
                f"name those that answer {row['text']!r}"
            )
    return Diagnostic(
        queries=tuple(row["text"] for row in asked),
        requires=np.array([row["memory"] for row in asked]),
        memories=tuple(memory["text"] for memory in memories),
        ids=tuple(stores),
        stores=np.array(list(stores.values())),
        gold=np.array([[id in gold[row["query"]] for id in stores] for row in asked]),
    )


def measure(diagnostic, encoder, weights=None):
    """Distances of all queries under R adapters, whose embeddings have unit length (Eq. 3).

        d_e(q) = mean over episodic m of 1 - cos(q~, m~),   d_s likewise,   Delta(q) = d_e(q) - d_s(q)

    Parameters
    ----------
    diagnostic : Diagnostic
    encoder : str
    weights : torch.Tensor, optional
        W_q and W_m, `[2, R, d, d]`; without them the embeddings of the frozen encoder, R = 1.

    Returns
    -------
    Distances
    """
    query = torch.from_numpy(encode(diagnostic.queries, encoder, "query")).double()
    memory = torch.from_numpy(encode(diagnostic.memories, encoder, "memory")).double()
    replicas = 1 if weights is None else weights.shape[1]
    untrained = torch.zeros(2, 1, query.shape[-1], query.shape[-1])
    adapter = Adapter(untrained if weights is None else weights, dtype=torch.float64)
    with torch.no_grad():
        similarity, _, _ = adapter.score(query.expand(replicas, -1, -1), memory.expand(replicas, -1, -1))
    distance = 1 - similarity.numpy()
    d_e, d_s = (distance[:, :, diagnostic.stores == kind].mean(-1) for kind in KINDS)
    gold = torch.from_numpy(diagnostic.gold).expand(similarity.shape)
    found = gold.gather(-1, best(similarity, FIRST)).sum(-1) == gold.sum(-1)
    return Distances(d_e, d_s, found.double().numpy())


def random_like(weights, count):
    """Random adapters with the Frobenius norms of trained ones: what a map of that size does that learned nothing.

    Parameters
    ----------
    weights : torch.Tensor
        `[2, R, d, d]`.
    count : int
        C; adapter c has normal entries from a generator of its own, and the norms of W_q and W_m of seed c mod R.

    Returns
    -------
    torch.Tensor
        `[2, C, d, d]`.
    """
    made = []
    for number in range(count):
        theirs = weights[:, number % weights.shape[1]]
        normal = torch.from_numpy(randomness.generator(number, "start").standard_normal(tuple(theirs.shape))).to(theirs)
        scale = torch.linalg.matrix_norm(theirs) / torch.linalg.matrix_norm(normal)
        made.append(normal * scale[:, None, None])
    return torch.stack(made, 1)


def separation(values, requires):
    """How much higher Delta is for queries that require semantic memories than for those that require episodic ones.

    Parameters
    ----------
    values : numpy.ndarray
        Delta, or its change, `[..., Q]`.
    requires : numpy.ndarray
        The kind of memory that each query requires, `[Q]`.

    Returns
    -------
    numpy.ndarray
        `[...]`.
    """
    return values[..., requires == "semantic"].mean(-1) - values[..., requires == "episodic"].mean(-1)


def over_questions(values, requires):
    """A separation with its interval and test over queries.

    Parameters
    ----------
    values, requires : numpy.ndarray
        As in `separation`, `[Q]`.

    Returns
    -------
    dict
        `difference`; `difference_low`, `difference_high`, Welch's 95 % interval (with five queries and five, resampled
        ones would be too narrow); `p` of the exact two-sided permutation test: all ways to say which queries are the
        episodic ones.
    """

    def gap(one, other, axis):
        return one.mean(axis) - other.mean(axis)

    kinds = [values[requires == kind] for kind in ("semantic", "episodic")]
    exact = {"permutation_type": "independent", "n_resamples": np.inf, "vectorized": True}
    p = float(permutation_test(kinds, gap, **exact).pvalue)
    return {**_differing(separation(values, requires), ttest_ind, *kinds, equal_var=False), "p": p}


def over_seeds(by_adapter, others=None):
    """The mean of R values, or of R less C others, with its 95 % t interval over adapters (Welch's for two).

    Parameters
    ----------
    by_adapter, others : numpy.ndarray
        `[R]` and `[C]`.

    Returns
    -------
    dict
        `difference`, `difference_low`, `difference_high`; no interval where there is a single adapter.
    """
    if others is None:
        return _differing(by_adapter.mean(), ttest_1samp, by_adapter, popmean=0)
    return _differing(by_adapter.mean() - others.mean(), ttest_ind, by_adapter, others, equal_var=False)


def _differing(mean, test, *samples, **options):
    if min(map(len, samples)) < 2:
        low, high = None, None
    elif all(np.ptp(sample) < 1e-12 for sample in samples):  # nothing varies: a t test knows no answer
        low, high = float(mean), float(mean)
    else:
        low, high = map(float, test(*samples, **options).confidence_interval())
    return {"difference": float(mean), "difference_low": low, "difference_high": high}


# -- rows of a record --------------------------------------------------------------------------------------------------


def distance_rows(diagnostic, found, **keys):
    """Distances of each query, and how many of a kind have their gold among the first five.

    Parameters
    ----------
    diagnostic : Diagnostic
    found : Distances
    **keys
        `stage` and, after training, `adapter`; before it `seeds=None`, as the frozen encoder has none.

    Returns
    -------
    list of dict
        Fields and keys for `records.row`: metrics d_e, d_s and delta by query (from 1) and requires; recall@5 by
        requires. A single query moves the recall of trained adapters by points, so it may vary between machines.
    """
    made = []
    for number, kind in enumerate(diagnostic.requires.tolist(), 1):
        for metric in ("d_e", "d_s", "delta"):
            value = _mean(getattr(found, metric)[:, number - 1])
            made.append({"metric": metric, "query": number, "requires": kind, **value, **keys})
    for kind in KINDS:
        of_kind = 100 * found.recalled[:, diagnostic.requires == kind]
        value = {**_mean(of_kind.mean(1)), "n_queries": of_kind.shape[1], "varies": "adapter" in keys}
        made.append({"metric": "recall@5", "requires": kind, **value, **keys})
    return made


def change_rows(diagnostic, before, found, adapter):
    """How far an adapter moves Delta: of each query, and of the queries of a kind on average.

    Parameters
    ----------
    diagnostic : Diagnostic
    before, found : Distances
        Of the frozen encoder and of the adapters.
    adapter : str
        What they are called.

    Returns
    -------
    list of dict
        Fields and keys for `records.row`: metric delta_change by query and requires, and by requires alone.
    """
    change, made = found.delta - before.delta, []
    for number, kind in enumerate(diagnostic.requires.tolist(), 1):
        keys = {"query": number, "requires": kind, "adapter": adapter}
        made.append({"metric": "delta_change", **keys, **_mean(change[:, number - 1])})
    for kind in KINDS:
        of_kind = change[:, diagnostic.requires == kind]
        value = {**_mean(of_kind.mean(1)), "n_queries": of_kind.shape[1]}
        made.append({"metric": "delta_change", "requires": kind, "adapter": adapter, **value})
    return made


def separation_rows(diagnostic, before, adapters):
    """Whether adapters move the two kinds of queries apart, and farther than the first of them does.

    Parameters
    ----------
    diagnostic : Diagnostic
    before : Distances
        Of the frozen encoder.
    adapters : dict of str to Distances
        By name.

    Returns
    -------
    list of dict
        Fields and keys for `records.row`. The metric separation has the key stage and, after training, adapter and its
        difference to before; separation_change is that difference, compared with the first adapter's. The key interval
        says over what the interval of a difference is: "questions" or "seeds".
    """
    requires = diagnostic.requires
    start, count = separation(before.delta, requires), {"n_queries": len(requires)}
    changes = {adapter: found.delta - before.delta for adapter, found in adapters.items()}
    name, first = next(iter(changes.items()), (None, None))
    made = [{"metric": "separation", "stage": "before", **_mean(start), **count, "seeds": None}]
    for adapter, change in changes.items():
        moved = separation(change, requires)
        after = {"metric": "separation", "stage": "after", "adapter": adapter, **_mean(start + moved), **count}
        after["compared_with"] = {"stage": "before", "adapter": None, "interval": None}
        made.append({**after, "interval": "questions", **over_questions(change.mean(0), requires)})
        made.append({**after, "interval": "seeds", **over_seeds(moved)})
        apart = {"metric": "separation_change", "adapter": adapter, **_mean(moved), **count}
        if change is first:
            made += [{**apart, "interval": interval} for interval in ("questions", "seeds")]
            continue
        apart["compared_with"] = {"adapter": name}
        made.append({**apart, "interval": "questions", **over_questions(change.mean(0) - first.mean(0), requires)})
        made.append({**apart, "interval": "seeds", **over_seeds(moved, separation(first, requires))})
    return made


def missing_rows(diagnostic, adapters, reason):
    """A dash in place of every row of adapters that cannot be trained.

    Parameters
    ----------
    diagnostic : Diagnostic
    adapters : sequence of str
        What they are called.
    reason : str
        Why they cannot.

    Returns
    -------
    list of dict
        Fields and keys for `records.row`, as of `distance_rows`, `change_rows` and `separation_rows`.
    """
    made = []
    for adapter in adapters:
        dash = {"adapter": adapter, "measured": None, "reason": reason}
        after, kinds = {**dash, "stage": "after"}, dict(enumerate(diagnostic.requires.tolist(), 1))
        for number, kind in kinds.items():
            keys = {"query": number, "requires": kind}
            made += [{"metric": metric, **keys, **after} for metric in ("d_e", "d_s", "delta")]
            made.append({"metric": "delta_change", **keys, **dash})
        for kind in KINDS:
            made.append({"metric": "recall@5", "requires": kind, **after})
            made.append({"metric": "delta_change", "requires": kind, **dash})
        for interval in ("questions", "seeds"):
            made.append({"metric": "separation", "interval": interval, **after})
            made.append({"metric": "separation_change", "interval": interval, **dash})
    return made


def printed(stage):
    """Delta of each query as the paper prints it, `[Q]`, before or after training (Table 12)."""
    found = sorted(paper.reported("tab12", metric=f"delta_{stage}"), key=lambda row: row["query"])
    return np.array([row["value"] for row in found])


def separations(record, requires):
    """What the rows of `separation_rows` say, for people to read: a line an adapter, and one of the paper's numbers.

    Parameters
    ----------
    record : dict
    requires : numpy.ndarray
        The kind of memory that each query requires, `[Q]`.

    Returns
    -------
    pandas.DataFrame
        The change of the separation and how much larger it is than the first adapter's, with intervals and p; the
        paper's where the record holds its numbers.
    """
    heads = {"separation": "change of the separation", "separation_change": "less that of {}"}
    lines = {}
    for row in record["rows"]:
        if row["metric"] in heads and row.get("difference") is not None:
            head = heads[row["metric"]].format(row["compared_with"]["adapter"])
            line = lines.setdefault(f"{row['adapter']} ({row['seeds']})", {})
            line[head, "mean"], line[head, f"over {row['interval']}"] = _shown(row)
            if "p_holm" in row:
                line[head, "p"] = f"{row['p_holm']:.3f}"
    if any(row.get("printed") for row in record["rows"]):
        theirs = over_questions(printed("after") - printed("before"), requires)
        columns = [(heads["separation"], name) for name in ("mean", "over questions")]
        lines["the paper's numbers"] = dict(zip(columns, _shown(theirs), strict=True))
    frame = pd.DataFrame.from_dict(lines, orient="index").fillna("")
    return frame.set_axis(pd.MultiIndex.from_tuples(frame.columns), axis=1)


def _shown(row):
    low, high = row.get("difference_low"), row.get("difference_high")
    return f"{row['difference']:+.3f}", "" if low is None else f"[{low:+.3f}, {high:+.3f}]"


def moved(record):
    """Delta of each query before and after each adapter, for `plots.moves`; the paper's where the record holds it.

    Returns
    -------
    pandas.DataFrame
        Columns query, requires, adapter, before, after and std.
    """
    rows = [row for row in record["rows"] if row["metric"] == "delta"]
    start = {row["query"]: row for row in rows if row["stage"] == "before"}
    lines, theirs = [], []
    for row in rows:
        if row["stage"] == "after":
            line = {"query": row["query"], "requires": row["requires"]}
            before = start[row["query"]]
            ends = {"before": before["measured"], "after": row["measured"], "std": row["std"]}
            lines.append({**line, "adapter": row["adapter"], **ends})
            if row.get("reported") is not None:
                ends = {"before": before["reported"], "after": row["reported"], "std": None}
                theirs.append({**line, "adapter": "paper", **ends})
    return pd.DataFrame(theirs + lines).astype({"before": float, "after": float, "std": float})


def _mean(by_adapter):
    """Mean over adapters, and their deviation (None for one)."""
    std = float(by_adapter.std(ddof=1)) if len(by_adapter) > 1 else None
    return {"measured": float(by_adapter.mean()), "std": std, "seeds": len(by_adapter)}
