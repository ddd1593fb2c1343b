"""Tables drawn from records, and the README's."""

import json
import re

import pytest
from test_records import PARAMETERS, PROVENANCE, ablation, commit, measured

from earlib import paths, records
from earlib.harness import tables


def test_table_shows_measured_paper_and_verdict():
    table = tables.table(ablation(), index=("dataset", "variant"))
    assert table.index.to_list() == [("LoCoMo", "RL baseline"), ("LoCoMo", "EAR")]
    ear = table.loc[("LoCoMo", "EAR")]
    assert ear["Recall@5 (%)"].to_list() == ["45.0 ± 0.8 [41.0, 50.0] *", "80.28", "same direction"]
    assert ear["J (%)"].to_list() == ["–", "65.23", ""]
    assert ear["Latency (s)"].to_list() == ["0.0123", "", "not in the paper"]
    assert table.loc[("LoCoMo", "RL baseline"), ("J (%)", "measured")] == ""


def test_a_number_that_names_a_line_says_what_it_counts():
    record = records.record("t", "t", "laptop", {}, {}, [measured(rounds=2), measured(rounds=8, value=40.0)])
    lines = [line[0] for line in tables.table(record, index=("rounds",)).index]
    assert lines == ["Exploration rounds 2", "Exploration rounds 8"]


def test_table_refuses_two_rows_in_a_cell():
    rows = [measured(split="random"), measured(split="conversation", value=40.0)]
    record = records.record("t", "t", "laptop", {}, {}, rows)
    with pytest.raises(ValueError, match="two rows in the cell of locomo/minilm/ear/recall@5/split=conversation"):
        tables.table(record)
    assert tables.table(record, split="conversation").iloc[0, 0].startswith("40.0")
    assert len(tables.table(record, index=("split",))) == 2
    assert tables.frame(record, split="random")["measured"].to_list() == [45.0]
    with pytest.raises(ValueError, match="no row has"):
        tables.table(record, split="by day")


def test_caption_tells_setting_counts_and_what_is_missing():
    assert tables.caption(ablation()) == (
        "LoCoMo, MiniLM. LoCoMo stands in for LongMemEval, MiniLM for Contriever. 308 questions, 3 seeds, "
        "0 questions without gold left out of a seed. ± standard deviation over seeds, "
        "[ ] 95 % interval. Direction compared with "
        "RL baseline. * the critic sees test gold (noisy). – no language model."
    )
    assert tables.caption(ablation(), signs=False) == (
        "LoCoMo, MiniLM. LoCoMo stands in for LongMemEval, MiniLM for Contriever. 308 questions, 3 seeds, "
        "0 questions without gold left out of a seed. – no language model."
    )
    own = records.record("t", "t", "paper", {}, {}, [measured("ear", 56.0, {"id": "tab03"}, "locomo", "contriever")])
    assert "stands in" not in tables.caption(own)


def test_html_repeats_and_escapes():
    record = ablation()
    first, second = tables.show(record).data, tables.show(record).data
    assert first == second
    assert "<script" not in first and "style" not in first
    assert "&lt;b&gt;" in tables.html(tables.table(record), "<b>")


# -- README


def readme(places, monkeypatch, *arguments):
    """Exit of `python -m earlib.harness.tables readme`: None or its message."""
    monkeypatch.setattr(paths, "ROOT", places)
    try:
        return tables.main(["readme", *arguments])
    except SystemExit as left:
        return left.code


def test_readme_is_filled_and_found_stale(places, monkeypatch):
    file = places / "README.md"
    file.write_text("# t\n<!-- results -->\nold\n<!-- /results -->\nend\n")
    commit(ablation(), places)
    assert "README.md is stale" in readme(places, monkeypatch, "--check")
    assert "old" in file.read_text()
    assert readme(places, monkeypatch) is None
    text = file.read_text()
    assert text.startswith("# t\n<!-- results -->\n|") and text.endswith("<!-- /results -->\nend\n")
    assert (
        "| EAR: Recall@5 (%) | LoCoMo, MiniLM | 45.0 ± 0.8 [41.0, 50.0] \\* | 80.28 (LongMemEval, Contriever) | "
        "same direction |" in text
    )
    assert "| [tab03_ablation](results/laptop/tab03_ablation.ipynb) | Ablation study | 1 another setting, " in text
    assert readme(places, monkeypatch, "--check") is None
    commit(ablation(46.0), places)
    assert "README.md is stale" in readme(places, monkeypatch, "--check")


def test_readme_errors_name_the_file(places, monkeypatch):
    assert "README.md" in readme(places, monkeypatch)
    (places / "README.md").write_text("no marks")
    assert "expected one pair of lines <!-- results -->" in readme(places, monkeypatch)
    (places / "README.md").write_text("<!-- results -->\n<!-- /results -->\n")
    assert readme(places, monkeypatch) is None
    assert "run `make reproduce`" in (places / "README.md").read_text()
    broken = commit(ablation(), places, lambda text: text[:50])
    assert f"{broken}: not JSON" in readme(places, monkeypatch)


def test_the_readme_is_not_filled_from_a_record_of_other_parameters_than_the_profile_s(tmp_path):
    name = "tab08_latency"  # whose seconds of a critic call are worked out, and differ from the default for that reason
    content = json.loads((paths.reference() / "laptop" / f"{name}.json").read_text())
    file = tmp_path / "laptop" / f"{name}.json"
    paths.write_atomically(file, json.dumps(content))
    assert "Latency" in tables.readme_tables(file.parent)
    content["parameters"]["queries"] = 31
    paths.write_atomically(file, json.dumps(content))
    expected = (
        f"{name}.json: queries: expected 30, as in the profile laptop, found 31; run `make {name} PROFILE=laptop`"
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        tables.readme_tables(file.parent)


def test_a_table_without_a_number_of_the_paper_has_no_column_for_it():
    alone = {"difference": 1.0, "difference_low": 0.5, "difference_high": 2.0, "against": None}
    rows = [measured("rmm", against=None), measured("ear", compared_with="rmm", **alone)]
    made = records.record("tab03_ablation", "Ablation", "laptop", PARAMETERS, PROVENANCE, rows)
    for shown in (tables.show(made).data, tables.show_differences(made).data):
        assert "not in the paper" not in shown and "verdict" not in shown and "<table" in shown
    assert "verdict" in tables.show(ablation()).data


def test_differences_have_their_interval_and_no_p():
    tested = {"compared_with": "rmm", "difference": 14.0, "difference_low": 10.0, "difference_high": 18.0}
    rows = [measured("rmm", 31.0), measured("ear", p=0.0002, **tested), measured("ear_adapter", p=0.02, **tested)]
    made = records.record("tab03_ablation", "t", "laptop", PARAMETERS, PROVENANCE, rows)
    table = tables.differences(made)
    assert list(table["difference (points)"]) == ["+14.0 [+10.0, +18.0]"] * 2
    assert list(table["compared with"]) == ["RL baseline"] * 2 and "p" not in table
    assert tables.show_differences(made).data.endswith("[ ] 95 % interval of the difference.</p>")
    nothing = records.record(
        "t", "t", "laptop", {}, {}, [records.row("locomo", "minilm", "ear", "j", reason="no model")]
    )
    assert tables.show_differences(nothing).data == '<p class="caption">– no model.</p>'


def test_statements_of_the_text_are_shown_once():
    shown = tables.stated("noise")
    assert {"the paper states", "where"} <= set(shown.columns) and not shown.reset_index().duplicated().any()
