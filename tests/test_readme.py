"""The README's findings and table, and the tables of docs/results.md, drawn from records."""

import re
from html import unescape

import nbformat
import pytest
from test_records import PARAMETERS, PROVENANCE, ablation, commit, measured

from earlib import paths, records
from earlib.harness import findings, notebooks, readme

MARKS = "# t\n<!-- findings -->\n<!-- /findings -->\n<!-- results -->\nold\n<!-- /results -->\nend\n"


def filled(root, monkeypatch, *arguments):
    """Exit of `python -m earlib.harness.readme`: None or its message."""
    monkeypatch.setattr(paths, "ROOT", root)
    monkeypatch.setattr(findings, "_main_encoder", lambda profile: "minilm")  # its profile lies elsewhere
    try:
        return readme.main([*arguments])
    except SystemExit as left:
        return left.code


def test_pages_are_filled_and_found_stale(places, monkeypatch):
    first, second = places / "README.md", places / "docs" / "results.md"
    second.parent.mkdir()
    for file in (first, second):
        file.write_text(MARKS)
    commit(ablation(), places)
    assert "README.md is stale" in filled(places, monkeypatch, "--check") and first.read_text() == MARKS
    assert filled(places, monkeypatch) is None
    text = first.read_text()
    assert "| [tab03](results/laptop/tab03_ablation.ipynb) | Table 3 | 3 | Not measured: no row of " in text
    assert "\n1. Not measured: " in text and text.endswith("<!-- /results -->\nend\n")
    assert (
        "| EAR: Recall@5 (%) | LoCoMo, MiniLM | 45.0 ± 0.8 [41.0, 50.0] \\* | 80.28 (LongMemEval, Contriever) | "
        "same direction |" in second.read_text()
    )
    assert "(../results/laptop/tab03_ablation.ipynb) | Ablation study | 1 another setting, " in second.read_text()
    start = nbformat.read(places / "start.ipynb", 4).cells[0].source
    assert "| [tab03](notebooks/tab03_ablation.ipynb) | Table 3 | " in start and "\n1. Not measured: " in start
    assert filled(places, monkeypatch, "--check") is None
    commit(ablation(46.0), places)
    assert "docs/results.md is stale" in filled(places, monkeypatch, "--check")


def test_errors_name_the_file(places, monkeypatch):
    assert "README.md" in filled(places, monkeypatch)
    (places / "README.md").write_text("no marks")
    assert "expected one pair of lines <!-- findings -->" in filled(places, monkeypatch)
    broken = commit(ablation(), places, lambda text: text[:50])
    assert f"{broken}: not JSON" in filled(places, monkeypatch)


def table2(low, high):
    gap = {"difference": (low + high) / 2, "difference_low": low, "difference_high": high, "split": "random"}
    others = [measured(one, compared_with="retriever", **gap) for one in ("ear", "rmm")]
    others.append(measured("ear", over="equal_calls_3", compared_with={"variant": "retriever", "over": None}, **gap))
    rows = [measured("retriever", 33.0, split="random"), *others]
    return records.record("tab02_main_results", "t", "laptop", PARAMETERS, PROVENANCE, rows)


@pytest.mark.parametrize(
    ("low", "high", "word", "shown"),
    [(2, 6, "above", "+4.0 [+2.0, +6.0]"), (-1, 3, "not distinguishable from", "+1.0 [-1.0, +3.0]"),
     (-6, -2, "below", "-4.0 [-6.0, -2.0]"), (-6, -0.04, "below", "-3.0 [-6.0, -0.04]")],
)  # fmt: skip
def test_a_sentence_follows_its_numbers(low, high, word, shown):
    assert findings.finding(table2(float(low), float(high))).startswith(f"EAR is {word} the static retriever ({shown})")


def test_a_sentence_is_of_the_main_split_and_says_what_is_missing():
    made = table2(2.0, 6.0)
    made["parameters"] = made["parameters"] | {"split": "fixed"}
    assert findings.finding(made).startswith("Not measured: no row of variant ear.")
    absent = records.row("locomo", "minilm", "ear", "recall@5", reason="no weights", split="fixed")
    made["rows"].insert(0, absent | {"measured": None, "verdict": "not run"})
    assert findings.finding(made).startswith("Not measured: no weights.")


def test_of_several_encoders_a_sentence_speaks_of_the_profile_s_own():
    made = table2(2.0, 6.0) | {"profile": "laptop-large"}
    more = [row | {"encoder": "mpnet", "difference": -9.0, "difference_low": -12.0, "difference_high": -6.0}
            for row in made["rows"] if row["variant"] == "ear"]  # fmt: skip
    assert "(+4.0" in findings.finding(made) and "(-9.0" in findings.finding(made | {"rows": made["rows"] + more})


def test_a_value_that_was_not_measured_is_a_dash_in_its_sentence():
    made = table2(2.0, 6.0)
    made["rows"] = [row for row in made["rows"] if row["variant"] != "rmm"]
    told = findings.finding(made)
    assert "EAR is above the static retriever (+4.0 [+2.0, +6.0]), the RL baseline – it (–);" in told
    assert told.endswith("(–: no row of variant rmm.)")


@pytest.mark.parametrize(("more", "shown"), [(1.0, "1 of 1"), (0.0, "0 of 1")])
def test_a_sentence_counts_how_often_a_value_is_above_its_counterpart(monkeypatch, more, shown):
    made = table2(2.0, 6.0)
    made["rows"][1]["measured"] += more
    entry = {"says": "{ear:higher}", "rows": {"ear": {"variant": "ear", "than": {"variant": "rmm"}}}}
    monkeypatch.setattr(findings, "source", lambda: {made["id"]: entry})
    assert findings.finding(made) == shown


def test_a_notebook_opens_with_its_sentence_and_concludes_with_what_was_measured(monkeypatch):
    made, rows = table2(2.0, 6.0), {"ear": {"variant": "ear", "over": None}, "none": {"variant": "nothing"}}
    shown = unescape(findings.show(made).data)
    assert findings.finding(made) in shown and re.search(r"LoCoMo, MiniLM, random split.* questions?, .* seeds", shown)
    entry = {"rows": rows, "concludes": ["EAR gains {ear}.", "What else is {none}."]}
    monkeypatch.setattr(findings, "source", lambda: {made["id"]: entry})
    assert "EAR gains +4.0 [+2.0, +6.0]. Not measured: no row of variant nothing." in findings.conclude(made).data


def test_a_run_by_hand_with_other_parameters_shows_the_committed_result(places, monkeypatch):
    commit(table2(2.0, 6.0), places)
    made = table2(-1.0, 3.0) | {"parameters": PARAMETERS | {"seeds": 1}}
    monkeypatch.delenv("EARLIB_RUNNING", raising=False)
    shown = findings.show(made).data
    assert "EAR is not distinguishable from" in shown and f"with seeds {PARAMETERS['seeds']}: EAR is above" in shown
    assert "committed" not in findings.show(table2(-1.0, 3.0)).data
    monkeypatch.setenv("EARLIB_RUNNING", "1")
    assert "committed" not in findings.show(made).data


def test_forms_count_rows_and_show_times():
    gaps = [{"difference": 1, "difference_low": low, "difference_high": high} for low, high in [(1, 2), (-3, -1)]]
    shown = [findings.told([*gaps, {"difference": None}], form) for form in ("rows", "above", "below")]
    assert shown == ["3", "1 of 2", "1 of 2"]
    assert findings.told([{"beside": "better: 3.0"}, {"beside": "worse"}, {}], "better") == "1 of 3"
    assert findings.told([{"measured": 0.0021, "low": 0.0018, "high": 0.0024}], "time") == "2.1 [1.8, 2.4] ms"


def test_every_notebook_of_the_paper_has_a_sentence_that_its_committed_record_fills():
    known = notebooks.sources()
    assert not [name for name in findings.source() if name not in (*known, "five")]
    for file in sorted((paths.reference() / "laptop").glob("*.json")):
        made = records.load(file.stem, "laptop", paths.reference())
        told = findings.finding(made)
        told += findings.conclude(made).data if "concludes" in findings.source().get(file.stem, {}) else ""
        assert "Not measured: no row" not in told, f"{file.stem}: {told}"
    told = findings.five(paths.reference())
    assert len(told) == 5 and not any("Not measured" in one or "(–: " in one for one in told)


def test_the_readme_is_short_and_its_tables_are_those_of_the_records(capsys):
    text = (paths.ROOT / "README.md").read_text("utf-8")
    assert len(re.sub(r"<!-- results -->.*<!-- /results -->", "", text, flags=re.DOTALL).split()) <= 1200
    readme.main(["--check"])
