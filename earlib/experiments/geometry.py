"""Distances of diagnostic queries to episodic and semantic memories (Tables 11 and 12), before and after an adapter.

A single matrix can move all queries alike. The two kinds of queries are therefore compared by their separation, the
mean Delta of queries that require semantic memories minus that of queries that require episodic ones.
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import permutation_test, ttest_1samp, ttest_ind

from earlib import extra, paper, paths
from earlib.core import randomness
from earlib.core.adapter import Adapter
from earlib.core.ordering import best
from earlib.data.encoders import encode

with extra("paper"):
    import pandas as pd

DIAGNOSTIC = Path(__file__).parent.parent / "data" / "diagnostic.yaml"
KINDS = ("episodic", "semantic")
FIRST = 5  # memories among which all gold ones must be


class Diagnostic(NamedTuple):
    """Q queries of the paper and M memories written for them."""

    queries: tuple  # texts
    requires: np.ndarray  # [Q] the kind of memory that a query requires, "episodic" or "semantic"
    memories: tuple  # texts
    ids: tuple
    stores: np.ndarray  # [M] the kind of a memory
    gold: np.ndarray  # [Q, M] bool, which memories answer a query

    def fingerprint(self):
        """SHA-256 (hex) of the content."""
        content = [value.tolist() if isinstance(value, np.ndarray) else value for value in self]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def frame(self):
        """Table of the queries, the kind that each requires, and the memories that answer it."""
        answers = [" ".join(np.array(self.memories)[found]) for found in self.gold]
        columns = {"query": self.queries, "requires": self.requires, "answered by": answers}
        return pd.DataFrame(columns, index=range(1, len(self.queries) + 1))


class Distances(NamedTuple):
    """Distances of Q queries under R adapters."""

    d_e: np.ndarray  # [R, Q] mean cosine distance to the episodic memories
    d_s: np.ndarray  # [R, Q] to the semantic ones
    recalled: np.ndarray  # [R, Q] whether all gold memories are among the first five of all memories, 0 or 1

    @property
    def delta(self):
        """d_e - d_s: negative if the query is closer to episodic memories, positive if closer to semantic ones."""
        return self.d_e - self.d_s


def load_diagnostic():
    """Load the paper's diagnostic queries and the memories that were written for them."""
    content = paths.read_yaml(DIAGNOSTIC)
    asked = sorted(paper.reported("tab11"), key=lambda row: row["query"])
    texts, ids, stores = zip(*((one["text"], one["id"], one["store"]) for one in content["memories"]), strict=True)
    gold = np.array([[id in content["gold"][row["query"]] for id in ids] for row in asked])
    requires = np.array([row["memory"] for row in asked])
    return Diagnostic(tuple(row["text"] for row in asked), requires, texts, ids, np.array(stores), gold)


def distances(diagnostic, encoder, weights=None):
    """Distances of all queries under R adapters, whose embeddings have unit length (Eq. 3).

        d_e(q) = mean over episodic m of 1 - cos(q~, m~),   d_s likewise,   Delta(q) = d_e(q) - d_s(q)

    `weights` are W_q and W_m, `[2, R, d, d]`; without them the embeddings are those of the frozen encoder, R = 1.
    """
    query = torch.from_numpy(encode(diagnostic.queries, encoder, "query")).double()
    memory = torch.from_numpy(encode(diagnostic.memories, encoder, "memory")).double()
    weights = torch.zeros(2, 1, query.shape[-1], query.shape[-1]) if weights is None else weights
    with torch.no_grad():
        expanded = (embedded.expand(weights.shape[1], -1, -1) for embedded in (query, memory))
        similarity, _, _ = Adapter(weights, dtype=torch.float64).score(*expanded)
    distance = 1 - similarity.numpy()
    d_e, d_s = (distance[:, :, diagnostic.stores == kind].mean(-1) for kind in KINDS)
    gold = torch.from_numpy(diagnostic.gold).expand(similarity.shape)
    found = gold.gather(-1, best(similarity, FIRST)).sum(-1) == gold.sum(-1)
    return Distances(d_e, d_s, found.double().numpy())


def random_like(weights, count):
    """C random adapters, `[2, C, d, d]`, with the Frobenius norms of trained ones, `[2, R, d, d]`.

    Adapter c has normal entries from its own generator, and the norms of W_q and W_m of seed c mod R.
    """
    made = []
    for number in range(count):
        theirs = weights[:, number % weights.shape[1]]
        normal = torch.from_numpy(randomness.generator(number, "start").standard_normal(tuple(theirs.shape))).to(theirs)
        scale = torch.linalg.matrix_norm(theirs) / torch.linalg.matrix_norm(normal)
        made.append(normal * scale[:, None, None])
    return torch.stack(made, 1)


# -- statistics --------------------------------------------------------------------------------------------------------


def separation(values, requires):
    """Mean of values, `[..., Q]`, over queries that require semantic memories, minus that over the episodic ones."""
    return values[..., requires == "semantic"].mean(-1) - values[..., requires == "episodic"].mean(-1)


def over_questions(values, requires):
    """A separation of values, `[Q]`, with Welch's 95 % interval over queries, and p of the exact permutation test."""

    def gap(one, other, axis):
        return one.mean(axis) - other.mean(axis)

    kinds = [values[requires == kind] for kind in ("semantic", "episodic")]
    tested = permutation_test(kinds, gap, permutation_type="independent", n_resamples=np.inf, vectorized=True)
    return with_interval(*kinds) | {"p": float(tested.pvalue)}


def with_interval(by_adapter, others=None):
    """The mean of R values, or of R minus C others, with its 95 % t interval (Welch's for two samples)."""
    samples = [one for one in (by_adapter, others) if one is not None]
    mean = float(by_adapter.mean() - (0 if others is None else others.mean()))
    low = high = mean  # constant samples: the t test is undefined
    if min(map(len, samples)) < 2:
        low = high = None
    elif any(np.ptp(sample) >= 1e-12 for sample in samples):
        tested = ttest_1samp(by_adapter, 0) if others is None else ttest_ind(*samples, equal_var=False)
        low, high = map(float, tested.confidence_interval())
    return {"difference": mean, "difference_low": low, "difference_high": high}


def _over_adapters(values):
    """Mean over adapters, and their deviation (None for one)."""
    std = float(values.std(ddof=1)) if len(values) > 1 else None
    return {"measured": float(values.mean()), "std": std, "seeds": len(values)}


# -- rows of a record --------------------------------------------------------------------------------------------------


def geometry_rows(diagnostic, before, after):
    """Fields and keys of rows for `records.row`, by query (from 1), or by the kind that queries require.

    The key stage is "before" or "after", interval is "questions" or "seeds", the units of a separation's interval.

    `before` are the `Distances` of the frozen encoder, `after` those of adapters by name; separations are compared with
    the first.
    """
    requires = diagnostic.requires
    queries = [({"query": at, "requires": kind}, [at - 1]) for at, kind in enumerate(requires.tolist(), 1)]
    kinds = [({"requires": kind, "n_queries": int(sum(requires == kind))}, requires == kind) for kind in KINDS]

    def by(groups, metric, values, **keys):
        return [{"metric": metric, **of, **_over_adapters(values[:, at].mean(1)), **keys} for of, at in groups]

    def at(stage, found, **keys):
        made = [row for name in ("d_e", "d_s", "delta") for row in by(queries, name, getattr(found, name), stage=stage)]
        made += by(kinds, "recall@5", 100 * found.recalled, stage=stage, varies=stage == "after")
        return [{**row, **keys} for row in made]

    made = at("before", before, seeds=None)
    for adapter, found in after.items():
        made += at("after", found, adapter=adapter)
        for groups in (queries, kinds):
            made += by(groups, "delta_change", found.delta - before.delta, adapter=adapter)
    return made + _separation_rows(requires, before, after)


def _separation_rows(requires, before, after):
    start, count = separation(before.delta, requires), {"n_queries": len(requires)}
    changes = {adapter: found.delta - before.delta for adapter, found in after.items()}
    made = [{"metric": "separation", "stage": "before", **_over_adapters(start), **count, "seeds": None}]
    for adapter, change in changes.items():
        moved, first = separation(change, requires), next(iter(changes))
        both = {"questions": over_questions(change.mean(0), requires), "seeds": with_interval(moved)}
        about = {"metric": "separation", "stage": "after", "adapter": adapter, **_over_adapters(start + moved), **count}
        about["compared_with"] = {"stage": "before", "adapter": None, "interval": None}
        made += [{**about, "interval": interval, **gap} for interval, gap in both.items()]
        about = {"metric": "separation_change", "adapter": adapter, **_over_adapters(moved), **count}
        if adapter == first:
            both = dict.fromkeys(both, {})
        else:
            about["compared_with"], theirs = {"adapter": first}, changes[first]
            both["questions"] = over_questions(change.mean(0) - theirs.mean(0), requires)
            both["seeds"] = with_interval(moved, separation(theirs, requires))
        made += [{**about, "interval": interval, **gap} for interval, gap in both.items()]
    return made


def missing_rows(diagnostic, adapters, reason):
    """Rows without a value, with the reason, in place of all rows of adapters that cannot be trained."""
    nothing = Distances(*np.zeros((3, 1, len(diagnostic.queries))))
    keys = ("metric", "query", "requires", "stage", "adapter", "interval")
    made = geometry_rows(diagnostic, nothing, dict.fromkeys(adapters, nothing))
    dash = {"measured": None, "reason": reason}
    return [{key: row[key] for key in keys if key in row} | dash for row in made if "adapter" in row]


# -- tables and figures ------------------------------------------------------------------------------------------------


def printed_delta(stage):
    """Delta of each query as the paper prints it, `[Q]`, before or after training (Table 12)."""
    found = {row["query"]: row["value"] for row in paper.reported("tab12", metric=f"delta_{stage}")}
    return np.array([found[query] for query in sorted(found)])


def separations(record, requires):
    """Table of the changes of the separation by adapter, compared with the first, and of the paper's, if recorded."""
    heads = {"separation": "change of the separation", "separation_change": "minus that of {}"}
    lines = {}
    for row in record["rows"]:
        if row["metric"] in heads and row.get("difference") is not None:
            head = heads[row["metric"]].format(row["compared_with"]["adapter"])
            lines.setdefault(f"{row['adapter']} ({row['seeds']})", {}).update(_shown(head, row["interval"], row))
    if any(row.get("printed") for row in record["rows"]):
        theirs = over_questions(printed_delta("after") - printed_delta("before"), requires)
        lines["the paper's numbers"] = _shown(heads["separation"], "questions", theirs)
    frame = pd.DataFrame.from_dict(lines, orient="index").fillna("")
    return frame.set_axis(pd.MultiIndex.from_tuples(frame.columns, names=[None, None]), axis=1)


def _shown(head, interval, row):
    low, high = row.get("difference_low"), row.get("difference_high")
    ends = "" if low is None else f"[{low:+.3f}, {high:+.3f}]"
    return {(head, "mean"): f"{row['difference']:+.3f}", (head, f"over {interval}"): ends}


def moved(record):
    """Table of Delta before and after each adapter, and of the paper's if the record has it, for `figures.moves`."""
    rows = pd.DataFrame([{"reported": None, **row} for row in record["rows"] if row["metric"] == "delta"])
    before, after = (rows[rows["stage"] == stage] for stage in ("before", "after"))
    ends = after.merge(before[["query", "measured", "reported"]], on="query", suffixes=("", "_before"))
    ours = ends.assign(before=ends["measured_before"], after=ends["measured"])
    theirs = ends.assign(adapter="paper", before=ends["reported_before"], after=ends["reported"], std=None)
    both = pd.concat([theirs[ends["reported"].notna()], ours], ignore_index=True)
    numbers = dict.fromkeys(("before", "after", "std"), float)
    return both[["query", "requires", "adapter", *numbers]].astype(numbers)
