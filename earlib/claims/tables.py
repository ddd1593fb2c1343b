"""The claims, and what the paper leaves open, as tables for people to read."""

import re
from collections import Counter
from functools import cache
from importlib import resources

import pandas as pd
import yaml
from IPython.display import HTML

from earlib import paper, records
from earlib.claims.evidence import VERDICTS, Part, shown
from earlib.claims.functions import texts
from earlib.harness import tables

FIGURES = {"fig:comparison": 1, "fig:pipeline": 2, "fig:num_observations": 6, "fig:retriever-comparison": 7}
SIGNS = {
    "leq": "≤", "sum": "Σ", "sim": "∼", "cdot": "·", "in": "∈", "gets": "←", "Delta": "Δ", "eta": "η", "times": "×",
}  # fmt: skip
WORDS = """<style>
.dataframe.earlib.words th, .dataframe.earlib.words td { text-align: left; vertical-align: top; }
.dataframe.earlib.words tbody th { font-weight: normal; }
</style>
"""
JUDGED = {"reported_verdict": "on the paper's own numbers", "verdict": "measured here"}


def sections(record):
    """The sections of a record's claims, in the paper's order."""
    return list(dict.fromkeys(texts()[row["claim"]]["section"] for row in record["rows"]))


def claims(record, section):
    """The claims of a section with both verdicts.

    Parameters
    ----------
    record : dict
    section : str
        One of `sections`.

    Returns
    -------
    pandas.DataFrame
        Text, two lines a claim: what the paper's own numbers say, and what was measured here.
    """
    lines = {}
    for row in record["rows"]:
        text = texts()[row["claim"]]
        if text["section"] != section:
            continue
        where = ", ".join(dict.fromkeys(named(place) for place, _ in text["said"]))
        head = (f"“{plain(text['said'][0][1])}” ({where})", f"{text['what']}. Region: {text['region']}")
        printed = f"{row['printed']} stated" if row.get("printed") else ""
        lines[*head, JUDGED["reported_verdict"]] = (printed, row["reported_verdict"], row["reported_reason"])
        lines[*head, JUDGED["verdict"]] = (_value(row), row["verdict"], row["reason"])
    index = pd.MultiIndex.from_tuples(lines, names=["claim", "what is measured, and where it must lie", "judged"])
    return pd.DataFrame(lines.values(), index=index, columns=["value", "verdict", "because"])


def show(frame, caption=""):
    """A table of words with its caption, for the output of a notebook cell: nothing cut, read from the left."""
    with pd.option_context("display.max_colwidth", None):
        text = tables.html(frame, caption)
    for name in frame.index.names:
        text = text.replace("<th></th>", f"<th>{name or ''}</th>", 1)
    return HTML(WORDS + text.replace('class="dataframe earlib"', 'class="dataframe earlib words"'))


def show_claims(record, section):
    """The claims of a section under its name, for the output of a notebook cell."""
    rows = [row for row in record["rows"] if texts()[row["claim"]]["section"] == section]
    where = f"Measured on {paper.label(rows[0]['dataset'])} with {paper.label(rows[0]['encoder'])}"
    marked = f". * {records.SEES_GOLD}" if any(row.get("sees_gold") for row in rows) else ""
    return HTML(f"<h3>{section}</h3>\n{show(claims(record, section), f'{where}{marked}.').data}")


def tally(record):
    """How many claims have which verdict."""
    found = counts(record).pivot_table("claims", "judged", "verdict", "sum", fill_value=0)
    return found.reindex(index=list(JUDGED.values()), columns=list(VERDICTS), fill_value=0)


def _value(row):
    if row["measured"] is None:
        return "–"
    ends = (row["low"], row["high"]) if row["low"] is not None else (row["measured"],) * 2
    text = shown(Part("", row["measured"], *ends)).replace(", ", ",\u00a0")  # an interval stays on one line
    unit = paper.unit(row["metric"]) or paper.label(row["metric"])
    return " ".join(filter(None, [text, unit, "*" if row.get("sees_gold") else ""]))


def counts(record):
    """How many claims of each section have which verdict, judged on the paper's own numbers and measured here."""
    found = Counter(
        (judged, texts()[row["claim"]]["section"], row[field])
        for row in record["rows"] for field, judged in JUDGED.items()
    )  # fmt: skip
    return pd.DataFrame([(*key, n) for key, n in found.items()], columns=["judged", "section", "verdict", "claims"])


@cache
def readings():
    """What the paper leaves open or says in two ways, by name: open, said (place and quote), reading, field, value."""
    text = resources.files("earlib.paper").joinpath("readings.yaml").read_text(encoding="utf-8")
    return {name: {"field": None, "value": None, **one} for name, one in yaml.safe_load(text).items()}


def open_questions():
    """The same as a table."""
    lines = []
    for one in readings().values():
        words = "; ".join(f"“{plain(quote)}” ({named(place)})" for place, quote in one["said"])
        option = f"{one['field']} = {one['value']}" if one["field"] else "–"
        lines.append((one["open"], words, one["reading"], option))
    heads = ["what is open", "the paper", "reading here", "option"]
    return pd.DataFrame(lines, columns=heads).set_index(heads[0])


def named(place):
    """A place as readers know it: a label is its table or figure, a subsection the last of its titles."""
    tables = {row["place"]: int(row["id"][3:]) for row in paper.reported() if row["id"].startswith("tab")}
    figures = {row["place"]: int(row["figure"][3:]) for row in paper.reported("runs") if "figure" in row} | FIGURES
    if place in tables:
        return f"Table {tables[place]}"
    if place in figures:
        return f"Figure {figures[place]}"
    return place.rpartition(" / ")[2].rstrip(".").replace("--", "–")


def plain(latex):
    """LaTeX as plain words, as far as the quotes need it."""
    text = re.sub(r"~?\\(citep?|label|ref)\{[^}]*\}", "", latex).replace("\\\\", " ")
    for _ in range(3):  # commands within commands
        text = re.sub(r"\\(textbf|textit|emph|textsc|makecell|operatorname\*?)\{([^{}]*)\}", r"\2", text)
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2", text)
    text = re.sub(r"\\([A-Za-z]+)", lambda word: SIGNS.get(word[1], ""), text)
    return " ".join(re.sub(r"[\\{}$]|(?<=\\)[()]", "", text.replace("\\(", "").replace("\\)", "")).split())
