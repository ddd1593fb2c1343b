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
PRINTED, RANDOM, UNSEEN = "on the paper's own numbers", "measured here", "measured in unseen conversations"


def sections(record):
    return list(dict.fromkeys(claim_texts()[row["claim"]]["section"] for row in record["rows"]))


def _by_claim(record):
    """The rows of each claim, by how it was judged."""
    found = {}
    for row in record["rows"]:
        found.setdefault(row["claim"], {})[UNSEEN if row["split"] == "conversation" else RANDOM] = row
    return found


def overall(main, unseen):
    """The verdict on both splits in words, from the two rows of a claim."""
    if main["verdict"] == unseen["verdict"]:
        return main["verdict"]
    main_split = {"random": "at random"}.get(main["split"], "on the held-out set")
    return f"{main['verdict']} {main_split}, {unseen['verdict']} in unseen conversations"


def claims_table(record, section):
    """The claims of a section, three lines each: on the paper's own numbers, and measured here on both splits."""
    lines = {}
    for id, rows in _by_claim(record).items():
        text, main = claim_texts()[id], rows[RANDOM]
        if text["section"] != section:
            continue
        where = ", ".join(dict.fromkeys(place_name(place) for place, _ in text["said"]))
        said = f"“{plain(text['said'][0][1])}” ({where}). Measured: {overall(*rows.values())}"
        head = (said, f"{text['what']}. Region: {text['region']}")
        printed = f"{main['printed']} stated" if main.get("printed") else ""
        lines[*head, PRINTED] = (printed, main["reported_verdict"], "", "", main["reported_reason"])
        for judged, row in rows.items():
            readings = f"stands under {row['readings']}" if row.get("readings") else "none was tried for it"
            beside = row.get("beside") or ""
            lines[*head, judged] = (_value(row), row["verdict"], beside, readings if row is main else "", _because(row))
    index = pd.MultiIndex.from_tuples(lines, names=["claim", "what is measured, and where it must lie", "judged"])
    heads = ["value", "verdict", "against the equal-call control", "other readings", "because"]
    return pd.DataFrame(lines.values(), index=index, columns=heads)


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
    rows = [row for row in record["rows"] if claim_texts()[row["claim"]]["section"] == section]
    tested = {row["comparison"] for row in record["rows"] if row.get("corrected") is not None}
    tests = (
        "p: permutation test over questions, corrected (Holm) with those of all parts of the ledger" if tested else ""
    )
    marked = f"* {records.SEES_GOLD}" if any(row.get("sees_gold") for row in rows) else ""
    caption = ". ".join(filter(None, [record["title"], tests, marked]))
    return HTML(f"<h3>{section}</h3>\n{show_words(claims_table(record, section), f'{caption}.').data}")


def verdict_counts(record):
    """Number of claims by section and verdict: on the paper's own numbers, and measured here on both splits."""
    keys = []
    for id, rows in _by_claim(record).items():
        judged = {PRINTED: rows[RANDOM]["reported_verdict"], **{said: row["verdict"] for said, row in rows.items()}}
        keys += [(said, claim_texts()[id]["section"], verdict) for said, verdict in judged.items()]
    lines = [(*key, n) for key, n in Counter(keys).items()]
    return pd.DataFrame(lines, columns=["judged", "section", "verdict", "claims"])


def tally(record):
    """Number of claims by verdict; and with claims that the same difference decides in the same way counted once."""
    found = verdict_counts(record).pivot_table("claims", "judged", "verdict", "sum", fill_value=0)
    once = {}
    for id, rows in _by_claim(record).items():
        for said, row in rows.items():
            once.setdefault(f"{said}, each difference once", set()).add((row["verdict"], row.get("comparison") or id))
    counted = {said: Counter(verdict for verdict, _ in pairs) for said, pairs in once.items()}
    found = pd.concat([found, pd.DataFrame.from_dict(counted, orient="index")])
    order = [PRINTED, *(line for said in (RANDOM, UNSEEN) for line in (said, f"{said}, each difference once"))]
    return found.reindex(index=order, columns=list(CLAIM_VERDICTS)).fillna(0).astype(int)


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
