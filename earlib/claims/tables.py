"""Tables of the claims, and of the choices that the paper leaves open, for notebooks."""

import html
import re
from itertools import groupby
from operator import itemgetter

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
PRINTED, RANDOM, UNSEEN = "on the paper's own numbers", "measured here", "measured in unseen conversations"


def _said(row):
    return UNSEEN if row["split"] == "conversation" else RANDOM


def _verdicts(record):
    """Frame of all verdicts, a line for each claim and way to judge it; `same` names the difference that decides."""
    lines = []
    for row in record["rows"]:
        about = {"section": claim_texts()[row["claim"]]["section"], "claim": claim_texts()[row["claim"]]["name"]}
        if _said(row) == RANDOM:
            lines.append({**about, "judged": PRINTED, "verdict": row["reported_verdict"]})
        same = row.get("comparison") or row["claim"]
        lines.append({**about, "judged": _said(row), "verdict": row["verdict"], "same": same})
    return pd.DataFrame(lines)


def sections(record):
    return list(_verdicts(record)["section"].unique())


def contents(record):
    """Links to the sections that `show_claims` shows, with their numbers of claims."""
    counts = _verdicts(record).groupby("section", sort=False)["claim"].nunique()
    lines = [f'<li><a href="#{_anchor(name)}">{name}</a>, {n} claims</li>' for name, n in counts.items()]
    return HTML(f"<ul>{''.join(lines)}</ul>")


def _anchor(section):
    return "claims-" + section.lower().replace(" ", "-")


def overview(record, section):
    """Verdicts on each claim of a section."""
    found = _verdicts(record).query("section == @section")
    return found.pivot_table("verdict", "claim", "judged", aggfunc="first", sort=False).rename_axis(columns=None)


def verdict_counts(record):
    """Number of claims by section and verdict: on the paper's own numbers, and measured here on both splits."""
    found = _verdicts(record).groupby(["judged", "section", "verdict"], sort=False).size()
    return found.reset_index(name="claims")


def tally(record):
    """Number of claims by verdict; and with claims that the same difference decides in the same way counted once."""
    every = _verdicts(record)
    once = every.dropna(subset="same").drop_duplicates(["judged", "verdict", "same"])
    every = pd.concat([every, once.assign(judged=once["judged"] + ", each difference once")])
    order = [PRINTED, *(line for said in (RANDOM, UNSEEN) for line in (said, f"{said}, each difference once"))]
    found = pd.crosstab(every["judged"], every["verdict"]).rename_axis(index=None, columns=None)
    return found.reindex(index=order, columns=list(CLAIM_VERDICTS), fill_value=0)


def claim_table(rows):
    """A claim in three lines: on the paper's own numbers, and measured here on both splits."""
    main, lines = rows[0], {}
    printed = f"{main['printed']} stated" if main.get("printed") else ""
    lines[PRINTED] = (printed, main["reported_verdict"], "", "", main["reported_reason"])
    for row in rows:
        readings = f"stands under {row['readings']}" if row.get("readings") else "none was tried for it"
        beside = row.get("beside") or ""
        lines[_said(row)] = (_value(row), row["verdict"], beside, readings if row is main else "", _because(row))
    heads = ["value", "verdict", "against the equal-call control", "other readings", "because"]
    found = pd.DataFrame.from_dict(lines, orient="index", columns=heads)
    return found.loc[:, (found != "").any()]


def _because(row):
    """The reason, and in brackets the verdicts on the parts that it does not name."""
    told = [f"[{name}: {one}]" for name, one in (row.get("parts") or {}).items()
            if name not in row["reason"] and one.partition(": ")[2] not in row["reason"]]  # fmt: skip
    return "; ".join([row["reason"], *told])


def _value(row):
    if row["measured"] is None:
        return "–"
    ends = (row["low"], row["high"]) if row["low"] is not None else (row["measured"],) * 2
    text = value_text(Part("", row["measured"], *ends)).replace(", ", ",\u00a0")  # an interval stays on one line
    unit = paper.unit(row["metric"]) or paper.label(row["metric"])
    p = f", p = {row['corrected']:.2g}" if row.get("corrected") is not None else ""
    return " ".join(filter(None, [text, unit + p, "*" if row.get("sees_gold") else ""]))


def show_words(frame, caption=""):
    """Display a table of text with its caption: nothing cut, aligned to the left."""
    with pd.option_context("display.max_colwidth", None):
        text = frame.to_html(border=0, classes="earlib words", index_names=False)
    for name in frame.index.names:
        text = text.replace("<th></th>", f"<th>{name or ''}</th>", 1)
    return HTML(WORDS + text + (f'\n<p class="caption">{html.escape(caption)}</p>' if caption else ""))


def show_claims(record, section):
    """The claims of a section: their verdicts, and folded below them words, regions, values and reasons."""
    rows = [row for row in record["rows"] if claim_texts()[row["claim"]]["section"] == section]
    told = [_words_and_values(claim_texts()[id], [*both]) for id, both in groupby(rows, itemgetter("claim"))]
    tests = "p: permutation test over questions, corrected (Holm) with those of all parts of the ledger"
    tested = any(row.get("corrected") is not None for row in rows)
    marked = f"* {records.SEES_GOLD}" if any(row.get("sees_gold") for row in rows) else ""
    caption = ". ".join(filter(None, [record["title"], tests if tested else "", marked]))
    verdicts = show_words(overview(record, section)).data
    inner = "".join([*told, f'<p class="caption">{html.escape(caption)}.</p>'])
    folded = f"<details><summary>Words, regions, values and reasons</summary>{inner}</details>"
    return HTML(f'<h3 id="{_anchor(section)}">{section}</h3>\n{verdicts}\n{folded}')


def _words_and_values(text, rows):
    where = ", ".join(dict.fromkeys(place_name(place) for place, _ in text["said"]))
    said = f"“{plain(text['said'][0][1])}” ({where}). Measured: {text['what']}. Region: {text['region']}."
    return f"<h4>{html.escape(text['name'])}</h4><p>{html.escape(said)}</p>{show_words(claim_table(rows)).data}"


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
