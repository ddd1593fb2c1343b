"""Tables of the claims, and of the choices that the paper leaves open, for notebooks."""

import html
import re
from collections import Counter

import pandas as pd
from IPython.display import HTML

from earlib import paper, records
from earlib.claims.decisions import claim_texts
from earlib.claims.rule import CLAIM_VERDICTS, Part, value_text

WORDS = """<style>
.dataframe.earlib.words th, .dataframe.earlib.words td { text-align: left; vertical-align: top; }
.dataframe.earlib.words tbody th { font-weight: normal; }
</style>
"""
JUDGED = {"reported_verdict": "on the paper's own numbers", "verdict": "measured here"}


def sections(record):
    return list(dict.fromkeys(claim_texts()[row["claim"]]["section"] for row in record["rows"]))


def claims_table(record, section):
    """The claims of a section, two lines each: the verdict on the paper's own numbers, and the one measured here."""
    lines = {}
    for row in record["rows"]:
        text = claim_texts()[row["claim"]]
        if text["section"] != section:
            continue
        where = ", ".join(dict.fromkeys(place_name(place) for place, _ in text["said"]))
        head = (f"“{plain(text['said'][0][1])}” ({where})", f"{text['what']}. Region: {text['region']}")
        printed = f"{row['printed']} stated" if row.get("printed") else ""
        lines[*head, JUDGED["reported_verdict"]] = (printed, row["reported_verdict"], row["reported_reason"])
        lines[*head, JUDGED["verdict"]] = (_value(row), row["verdict"], row["reason"])
    index = pd.MultiIndex.from_tuples(lines, names=["claim", "what is measured, and where it must lie", "judged"])
    return pd.DataFrame(lines.values(), index=index, columns=["value", "verdict", "because"])


def _value(row):
    if row["measured"] is None:
        return "–"
    ends = (row["low"], row["high"]) if row["low"] is not None else (row["measured"],) * 2
    text = value_text(Part("", row["measured"], *ends)).replace(", ", ",\u00a0")  # an interval stays on one line
    unit = paper.unit(row["metric"]) or paper.label(row["metric"])
    return " ".join(filter(None, [text, unit, "*" if row.get("sees_gold") else ""]))


def show_words(frame, caption=""):
    """Display a table of text with its caption: nothing cut, aligned to the left."""
    with pd.option_context("display.max_colwidth", None):
        text = frame.to_html(border=0, classes="earlib words", index_names=False)
    for name in frame.index.names:
        text = text.replace("<th></th>", f"<th>{name or ''}</th>", 1)
    return HTML(WORDS + text + (f'\n<p class="caption">{html.escape(caption)}</p>' if caption else ""))


def show_claims(record, section):
    rows = [row for row in record["rows"] if claim_texts()[row["claim"]]["section"] == section]
    where = f"Measured on {paper.label(rows[0]['dataset'])} with {paper.label(rows[0]['encoder'])}"
    marked = f". * {records.SEES_GOLD}" if any(row.get("sees_gold") for row in rows) else ""
    return HTML(f"<h3>{section}</h3>\n{show_words(claims_table(record, section), f'{where}{marked}.').data}")


def verdict_counts(record):
    """Number of claims by section and verdict, on the paper's own numbers and measured here."""
    keys = ((said, claim_texts()[row["claim"]]["section"], row[field])
            for row in record["rows"] for field, said in JUDGED.items())  # fmt: skip
    lines = [(*key, n) for key, n in Counter(keys).items()]
    return pd.DataFrame(lines, columns=["judged", "section", "verdict", "claims"])


def tally(record):
    found = verdict_counts(record).pivot_table("claims", "judged", "verdict", "sum", fill_value=0)
    return found.reindex(index=list(JUDGED.values()), columns=list(CLAIM_VERDICTS), fill_value=0)


def open_questions():
    """Table of the choices that the paper leaves open, with the reading chosen here."""
    lines = []
    for one in paper.open_choices().values():
        words = "; ".join(f"“{plain(quote)}” ({place_name(place)})" for place, quote in one["said"])
        option = f"{one['field']} = {one['value']}" if one["field"] else "–"
        lines.append((one["open"], words, one["reading"], option))
    heads = ["what is open", "the paper", "reading here", "option"]
    return pd.DataFrame(lines, columns=heads).set_index(heads[0])


def place_name(place):
    """A place as readers know it: the number of a table or figure, or the title of a subsection."""
    tables = {row["place"]: f"Table {int(row['id'][3:])}" for row in paper.reported() if row["id"].startswith("tab")}
    figures = {row["place"]: f"Figure {int(row['figure'][3:])}" for row in paper.reported("runs") if "figure" in row}
    titles = tables | figures | paper.claims_source()["figures"]
    return titles.get(place) or place.rpartition(" / ")[2].rstrip(".").replace("--", "–")


def plain(latex):
    """LaTeX as plain words, as far as the quotes need it."""
    signs = paper.claims_source()["signs"]
    text = re.sub(r"~?\\(citep?|label|ref)\{[^}]*\}", "", latex).replace("\\\\", " ")
    for _ in range(3):  # commands within commands
        text = re.sub(r"\\(textbf|textit|emph|textsc|makecell|operatorname\*?)\{([^{}]*)\}", r"\2", text)
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2", text)
    text = re.sub(r"\\([A-Za-z]+)", lambda word: signs.get(word[1], ""), text)
    return " ".join(re.sub(r"[\\{}$]|(?<=\\)[()]", "", text.replace("\\(", "").replace("\\)", "")).split())
