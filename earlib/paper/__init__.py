"""What the paper prints: its numbers (`reported.yaml`), each with its place, and its names for things."""

import re
from difflib import get_close_matches
from functools import cache
from importlib import resources

import yaml

from earlib.core.config import VARIANTS

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?")

# The names that readers see. Those of datasets, encoders, variants and measures are the paper's where it has one.
LABELS = {
    **{name: variant.title for name, variant in VARIANTS.items()},
    "ceiling": "Gold first (ceiling of the 20 candidates)",
    **{f"equal_calls_{n}": f"Equal-call control, {n} call{'s' * (n > 1)}" for n in range(1, 5)},
    "bm25": "BM25",
    "bm25_reranked": "BM25 over the candidates",
    "equal_calls": "Equal-call control",
    "memory_still": "Memory that does not learn",
    "memory_fused": "Ranks of cosine and BM25 fused",
    "memory_fixed": "A fixed weight of words, chosen",
    "memory_ceiling": "Gold first (ceiling of the 50 candidates)",
    "memory_words": "Only the weight of words learned",
    "memory_paper": "The paper's configuration, from citations",
    "memory_feedback": "Learning from citations",
    "memory_reflection": "Learning from reflection",
    "asked": "Questions asked",
    "equal_calls_below": "Equal-call control from the sixth on",
    "points": "points",
    "gold_first": "Gold first (ceiling of the candidates)",
    "plackett-luce": "Plackett-Luce",
    "closed": "Closed of the distance to the oracle",
    "surely_above_after": "Training queries until surely above the retriever",
    "critic_calls": "Critic calls until then",
    "ucb": "UCB (the paper's Explorer)",
    "thompson": "Thompson sampling",
    "posterior": "Posterior",
    "posterior_early": "Posterior, stopping early",
    "posterior_told": "Posterior, told when its slate holds all gold",
    "calls_asked": "Critic calls, on average",
    "calls_share": "Critic calls asked, of all",
    "against_calls": "against calls",
    "cumulative_gain": "Cumulative gain in Recall@5",
    "change_to_the_end": "Change of Recall@5 to the end of the stream, points",
    "against_full": "Against full, paired, points",
    "questions": "Questions answered",
    "learning_rate": "Learning rate",
    "locomo": "LoCoMo",
    "longmemeval": "LongMemEval",
    "toy": "toy dialogues",
    "minilm": "MiniLM",
    "mpnet": "MPNet",
    "contriever": "Contriever",
    "stella": "Stella",
    "gte": "GTE",
    "monot5": "MonoT5",
    "recall@5": "Recall@5",
    "hitrate@5": "Hitrate@5",
    "fractional recall@5": "fractional Recall@5",
    "recall@20": "Recall@20",
    "hitrate@20": "Hitrate@20",
    "candidates": "All 20 candidates",
    "with_gold": "Queries with a gold turn",
    "observations": "Observations",
    "f1": "F1",
    "j": "J",
    "latency": "Latency",
    "ear_adapter_folded": f"{VARIANTS['ear_adapter'].title}, folded into the bank",
    "applied": "adapter on the candidates",
    "folded": "adapter folded into the bank",
    "found@20": "Found of the exact 20",
    "overlap": "Slate in common",
    "disk": "Disk",
    "preparation": "Preparation",
    "queries": "Queries",
    "conversations": "Conversations",
    "sessions": "Sessions",
    "turns": "Dialogue Turns",
    "haystacks": "Haystacks",
    "haystack_sessions": "Sessions, in every haystack",
    "haystack_turns": "Dialogue Turns, in every haystack",
    "training_queries": "Training queries",
    "calls": "LLM calls",
    "rounds": "Exploration rounds",
    "replay_size": "Replay batch size",
    "similarity": "Similarity",
    "reward": "Reward",
    "random": "random",
    "dialogue": "Dialogues",
    "observation": "Observations",
    "both": "Dialogues + Observations",
    "initial_drop": "Largest drop below the retriever",
    "surpasses_after": "Training queries until it stays above the retriever",
    "conversation": "by conversation",
    "single-hop": "Single Hop",
    "multi-hop": "Multi Hop",
    "temporal": "Temporal",
    "open-domain": "Open Domain",
    "epochs": "Epochs",
    "side_start": "Start of w",
    "weight": "Weight w",
    "fresh_slates": "Fresh slates a query",
    "overtakes_after": "LLM calls until it stays above the retriever",
    "simulated": "Simulated",
    "gpt-5-mini": "GPT 5 Mini",
    "simulated_gpt-5-mini": "Simulated, at GPT 5 Mini's quality",
    "precision": "Precision",
    "recall": "Recall",
    "no_gold": "Slates without gold",
    "dimension": "Width of the embeddings",
    "model_size": "Parameters",
    "relative_gain": "Gain over the retriever, relative",
    "d_e": "d_e",
    "d_s": "d_s",
    "delta": "Δ",
    "delta_change": "Change of Δ",
    "separation_change": "Change of the separation",
    "query": "Query",
    "all types": "All types",
    "covered@5": "All gold turns covered",
    "chance": "By chance",
    "constant_answer": "One and the same answer to all",
    "judge_right": "Judge is right",
    "judge_flips": "Judge changes its verdict",
    "candidate": "judged",
    "prompt_as_printed": "Prompt as printed",
    "prompt_with_marks": "Prompt that marks texts off",
    "instruction": "instruction",
    "with": "with the instruction",
    "without": "without it",
    "cited": "Cited",
    "said_yes": "Said Yes",
    "attacked": "Questions on which it can be made",
    "base_rate": "Gold among all shown",
    "unparsed": "Slates not read",
    "llm": "language model",
    "none": "no model",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder 0.5B",
    "smollm2-135m": "SmolLM2 135M",
}


ENCODERS, DATASETS = ("contriever", "stella", "gte"), ("locomo", "longmemeval")  # of the paper
LANGUAGE_MODEL = "gpt-5-mini"  # of the paper: it answers, judges and cites
DEFAULT_ENCODER = "contriever"  # what the paper uses wherever it names none


def held_against(id, dataset, encoder, /, **keys):
    """Where the paper reports what was measured in some setting, for `report.row(against=...)`.

    Parameters
    ----------
    id : str
        As in `reported`.
    dataset, encoder : str
        The setting measured. Another encoder than the paper's is held against the one it uses by default, None
        against a number that names none; made dialogues are held against nothing.
    **keys
        Keys in which the paper's row differs (`dataset="longmemeval"`).

    Returns
    -------
    dict or None
    """
    if dataset not in DATASETS:
        return None
    theirs = encoder if encoder is None or encoder in ENCODERS else DEFAULT_ENCODER
    return {"id": id, "encoder": theirs, **keys}


def stands_for(dataset, encoder, theirs):
    """Fields of a row that say for which setting of the paper it stands, where no number is held against it.

    Parameters
    ----------
    dataset, encoder : str
        The setting measured; made dialogues stand for nothing.
    theirs : str
        The dataset of the paper's figure.

    Returns
    -------
    dict
    """
    where = held_against("tab02", dataset, encoder)
    return {"reported_dataset": theirs, "reported_encoder": where["encoder"]} if where else {}


def label(name):
    """The name shown to readers; one that is not in `LABELS` is shown with spaces for underscores."""
    return LABELS.get(name, str(name).replace("_", " "))


def unit(metric):
    """The unit of a metric as the paper prints it ("%", "s", ...), "" if it has none."""
    return _source()["units"].get(metric, "")


def reported(id=None, **keys):
    """The numbers that the paper prints, one a row.

    Parameters
    ----------
    id : str, optional
        A table ("tab01" to "tab12") or a group of statements ("gain", "hyperparameters", ...); all of them if left out.
    **keys
        Only rows that have each of these keys with this value: dataset, encoder, variant, metric, place, ...

    Returns
    -------
    list of dict
        Rows with id, place, quote (the literal LaTeX), their own keys, metric, value (float), printed (the number as
        it stands in the quote, "72.80") and unit.

    Raises
    ------
    KeyError
        For an id or the name of a key that no row has; the message names the near matches.
    """
    rows = _rows()
    if id is not None:
        _known("entry", id, _source()["entries"])
        rows = [row for row in rows if row["id"] == id]
    for key in keys:
        _known("key", key, {key for row in rows for key in row})
    return [dict(row) for row in rows if all(key in row and row[key] == value for key, value in keys.items())]


def printed(id, **keys):
    """The one number that the keys name, as the paper prints it ("72.80"), or None if it prints none.

    Raises
    ------
    KeyError
        As `reported`.
    ValueError
        If the keys fit rows with different numbers.
    """
    rows = reported(id, **keys)
    if len({row["value"] for row in rows}) > 1:
        open_keys = {key for row in rows for key in row if len({str(other.get(key)) for other in rows}) > 1}
        told = sorted(open_keys - {"value", "printed", "quote", "unit"})
        raise ValueError(f"{id}: {len(rows)} numbers fit {keys}; tell them apart by {', '.join(told)}")
    return rows[0]["printed"] if rows else None


def value(id, **keys):
    """The one number that the keys name, or None if the paper prints none; errors as `printed`.

    Examples
    --------
    >>> value("tab02", dataset="locomo", encoder="contriever", variant="ear", metric="recall@5")
    55.06
    """
    found = printed(id, **keys)
    return None if found is None else number(found)


def number(text):
    """The value of a printed number: "1,540" is 1540.0."""
    return float(text.replace(",", ""))


def _known(kind, name, names):
    if name not in names:
        near = get_close_matches(str(name), sorted(names), n=3) or sorted(names)
        raise KeyError(f"reported.yaml has no {kind} {name!r}; did you mean {', '.join(near)}?")


@cache
def _source():
    return yaml.safe_load(resources.files(__name__).joinpath("reported.yaml").read_text(encoding="utf-8"))


@cache
def _rows():
    rows = []
    for id, entry in _source()["entries"].items():
        for row in entry["rows"]:
            keys = {"id": id, "place": entry.get("place"), **entry.get("common", {}), **row}
            values = keys.pop("values")
            for metric, shown in values.items():
                found = {"metric": metric, "value": float(shown), "printed": _as_printed(id, shown, row["quote"])}
                rows.append({"unit": unit(metric), **keys, **found})
    return rows


def _as_printed(id, shown, quote):
    """The number in the form in which the quote has it: trailing zeros tell how far it was rounded."""
    for text in NUMBER.findall(quote):
        if number(text) == float(shown):
            return text
    raise ValueError(f"reported.yaml, entry {id}: the value {shown} does not stand in its quote {quote!r}")
