"""reported.yaml against the LaTeX of the paper, and the look-ups in it."""

import re

import pytest

from earlib import paper
from earlib.core.config import Config
from earlib.paper import NUMBER, number

TABLES = [f"tab{n:02d}" for n in range(1, 13)]
HEADING = re.compile(r"\\(section|subsection|subsubsection|paragraph)\*?\{(.*?)\}[ \t]*\n?(?:\\label\{.*?\})?")
LEVEL = {"section": 0, "subsection": 1, "subsubsection": 2, "paragraph": 3}


def environment(latex, place):
    """The table or figure that holds this label, None if there is none."""
    for found in re.finditer(r"\\begin\{(table|figure)\*?\}.*?\\end\{\1\*?\}", latex, re.DOTALL):
        if f"\\label{{{place}}}" in found[0]:
            return found[0]
    return None


def section(latex, place):
    """The text under a heading up to the next heading; "A / B" is B inside A; the first of equal titles otherwise.

    "Implementation Details" alone is the appendix, whose label makes it the one that the paper refers to.
    """
    if place == "Abstract":
        return latex[latex.index(r"\begin{abstract}") : latex.index(r"\end{abstract}")]
    *outer, title = place.split(" / ")
    headings, open_titles, found = list(HEADING.finditer(latex)), {}, []
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        level = LEVEL[heading[1]]
        open_titles = {depth: name for depth, name in open_titles.items() if depth < level} | {level: heading[2]}
        if heading[2] == title and set(outer) <= set(open_titles.values()):
            found.append((level, latex[heading.start() : following.start() if following else None]))
    assert found, f"the paper has no section {place!r}"
    return min(found, key=lambda item: item[0])[1]  # the outermost, then the first


def at_place(latex, place):
    return environment(latex, place) or section(latex, place)


def tabular(latex, id):
    text = environment(latex, paper.reported(id)[0]["place"])
    return re.search(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, re.DOTALL)[0]


@pytest.mark.parametrize("id", sorted({row["id"] for row in paper.reported()}))
def test_every_number_stands_at_its_place(latex, id):
    for row in paper.reported(id):
        text = tabular(latex, id) if id in TABLES else at_place(latex, row["place"])
        assert row["quote"] in text, f"{row['place']}: {row['quote']}"
        assert row["printed"] in NUMBER.findall(row["quote"])


def numbers(text):
    """The numbers of a piece of a table, without those of its layout and inside names."""
    for name in (r"\\multi(row|column)\{\d+\}(\{\*\})?", "@5", "GPT 5 Mini"):
        text = re.sub(name, " ", text)
    return NUMBER.findall(text)


@pytest.mark.parametrize("id", TABLES)
def test_every_number_of_a_table_is_reported(latex, id):
    rest, held = tabular(latex, id), {}
    for row in paper.reported(id):
        keys = " ".join(str(value) for key, value in row.items() if key not in ("id", "place", "quote", "value"))
        held.setdefault(row["quote"], set()).update(map(number, numbers(keys)))
    for quote, known in held.items():
        assert quote in rest
        assert set(map(number, numbers(quote))) <= known, quote
        rest = rest.replace(quote, " ", 1)
    assert held
    assert not numbers(rest), rest


@pytest.mark.parametrize(
    ("id", "key", "headings"),
    [
        ("tab01", "dataset", {"locomo": "LoCoMo", "longmemeval": "LongMemEval"}),
        ("tab02", "variant", {"retriever": "Only Retriever", "rmm": "Reranker", "ear": "EAR"}),
        ("tab04", "variant", {"retriever": "Retriever Only", "ear": "EAR"}),
        ("tab05", "variant", {"retriever": "Retriever Only", "ear": "EAR"}),
        ("tab10", "dataset", {"locomo": "LoCoMo", "longmemeval": "LongMemEval"}),
    ],
)
def test_a_row_belongs_to_the_block_it_is_printed_in(latex, id, key, headings):
    body = tabular(latex, id)
    for row in paper.reported(id):
        before = body[: body.index(row["quote"])]
        assert headings[row[key]] in before[before.rindex(r"\multirow") :], row


@pytest.mark.parametrize("id", ["tab02", "tab04", "tab08", "tab09", "tab10", "tab12"])
def test_metrics_follow_the_columns(latex, id):
    rows = paper.reported(id)
    for quote in {row["quote"] for row in rows}:
        held = [row["printed"] for row in rows if row["quote"] == quote]
        assert NUMBER.findall(quote)[-len(held) :] == held
    names = [row["metric"] for row in rows if row["quote"] == rows[0]["quote"]]
    header = tabular(latex, id).split(rows[0]["quote"])[0].lower()
    places = [header.index(name if "_" not in name else name.split("_")[1]) for name in names if name != "model_size"]
    assert places == sorted(places)


def test_every_decimal_and_percentage_of_the_text_is_reported(latex):
    body = latex[latex.index(r"\begin{abstract}") : latex.index(r"\section{Prompts Used}")]
    body = re.sub(r"\\begin\{(tabular|algorithmic|equation)\}.*?\\end\{\1\}", " ", body, flags=re.DOTALL)
    body = re.sub(r"(height|sep|stretch)\}?\{\S+\}|\\includegraphics\[.*?\]", " ", body)
    stated = set(re.findall(r"(?<![\w.])\d+\.\d+", body)) | set(re.findall(r"(?<![\w.])(\d+)\\%", body))
    known = {row["printed"] for row in paper.reported()}
    assert len(stated) >= 25
    assert stated <= known, stated - known


def test_the_defaults_are_the_papers_hyperparameters():
    rows = paper.reported("hyperparameters")
    assert {row["metric"]: row["value"] for row in rows}.keys() <= Config.model_fields.keys()
    for row in rows:
        assert getattr(Config(), row["metric"]) == row["value"], row


def test_statements_repeat_the_tables():
    for row in [*paper.reported("latency"), *paper.reported("question_types")]:
        keys = {key: row[key] for key in ("dataset", "variant", "metric", "category") if key in row}
        assert paper.printed("tab05" if "category" in row else "tab08", **keys) == row["printed"]


def test_value_and_printed():
    keys = {"dataset": "longmemeval", "variant": "ear_adapter", "metric": "recall@5"}
    assert paper.value("tab03", **keys) == 72.8
    assert paper.printed("tab03", **keys) == "72.80"
    assert paper.printed("tab01", dataset="longmemeval", metric="turns") == "199,509"
    assert paper.value("tab01", dataset="longmemeval", metric="turns") == 199509
    assert paper.value("tab02", dataset="toy", metric="recall@5") is None
    assert paper.value("gain", dataset="longmemeval", compared_with="retriever", metric="recall@5") == 17.9  # 3 places


def test_what_is_asked_for_by_a_wrong_name_is_named():
    with pytest.raises(KeyError, match="no entry 'tab2'.*tab02"):
        paper.value("tab2")
    with pytest.raises(KeyError, match="no key 'datset'.*dataset"):
        paper.value("tab02", datset="locomo")
    with pytest.raises(ValueError, match="9 numbers fit.*encoder, variant"):
        paper.value("tab02", dataset="locomo", metric="j")


def test_rows_are_the_callers_own():
    paper.reported("tab01")[0]["value"] = -1.0
    assert paper.reported("tab01")[0]["value"] == 1540


def test_labels_and_units():
    assert paper.label("explorer_training") == "EAR adapter, no buffer"
    assert paper.label("equal_calls_2") == "Equal-call control, 2 calls"
    assert (paper.unit("recall@5"), paper.unit("latency"), paper.unit("turns")) == ("%", "s", "")


def test_what_was_measured_has_its_counterpart_in_the_paper():
    assert paper.counterpart("tab02", "locomo", "minilm") == {"id": "tab02", "encoder": paper.DEFAULT_ENCODER}
    assert paper.counterpart("tab03", "locomo", "gte", dataset="longmemeval")["encoder"] == "gte"
    assert paper.counterpart("tab01", "locomo", None) == {"id": "tab01", "encoder": None}
    assert paper.counterpart("tab02", "toy", "minilm") is None and paper.counterpart_setting("toy", "minilm", "x") == {}
    theirs = {"reported_dataset": "longmemeval", "reported_encoder": "contriever"}
    assert paper.counterpart_setting("locomo", "minilm", "longmemeval") == theirs
