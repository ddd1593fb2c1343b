"""Tables drawn from records."""

import nbformat
import pytest
from test_records import PARAMETERS, PROVENANCE, ablation, measured

from earlib import paper, paths, records
from earlib.experiments import latency, several
from earlib.harness import tables


def test_table_shows_measured_paper_and_verdict():
    table = tables.table(ablation(), index=("dataset", "variant"))
    assert table.index.to_list() == [("LoCoMo", "RL baseline"), ("LoCoMo", "EAR")]
    ear = table.loc[("LoCoMo", "EAR")]
    assert ear["Recall@5 (%)"].to_list() == ["45.0 ± 0.8 [41.0, 50.0] *", "80.28", "same direction"]
    assert ear["J (%)"].to_list() == ["–", "65.23", ""]
    assert ear["Latency (ms)"].to_list() == ["12.3", "", "not in the paper"]
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


def test_the_paper_s_table_is_shown_in_its_order_with_ours_beneath_each_number():
    """Table 2: LongMemEval before LoCoMo, lines by method, and what the paper has not after its own."""
    here = [("locomo", "minilm", "equal_calls_3", None), ("locomo", "stella", "rmm", {"id": "tab02"})]
    here += [("locomo", "stella", "retriever", {"id": "tab02"}), ("longmemeval", "stella", "ear", {"id": "tab02"})]
    here += [("locomo", "minilm", "ear", paper.counterpart("tab02", "locomo", "minilm"))]
    rows = [measured(variant, 50.0, against, *where) for *where, variant, against in here]
    rows += records.not_run("tab02", rows, several.Several(["locomo"], ["stella"], [], {}))
    record = records.record("tab02_main_results", "t", "laptop", {}, {}, rows)
    frame = tables.printed(record, "tab02", ("variant", "encoder"), ("dataset", "metric"))
    order = [("Retriever", "Contriever"), ("Retriever", "Stella"), ("Retriever", "GTE"), ("RL baseline", "Contriever")]
    lines = list(dict.fromkeys((method, encoder) for method, encoder, _ in frame.index))
    assert lines[:4] == order and lines[-1] == ("Equal-call control, 3 calls", "MiniLM") and len(lines) == 11
    heads = ["Recall@5 (%)", "Hitrate@5 (%)", "F1 (%)", "J (%)"]
    assert list(frame.columns) == [(data, head) for data in ("LongMemEval", "LoCoMo") for head in heads]
    cell = frame.loc[("RL baseline", "Stella"), ("LoCoMo", "Recall@5 (%)")]
    assert cell.to_dict() == {"paper": "51.95", "measured": "50.0 ± 0.8 [46.0, 55.0]", "verdict": "agrees"}
    assert list(frame.loc[("RL baseline", "GTE")].index) == ["paper", "measured"]
    assert list(frame.loc[("EAR", "MiniLM")].index) == ["paper (Contriever)", "measured", "verdict"]


IN_THE_PAPER = {  # numbers of its tables in reading order; seconds in ms
    "tab05_query_types": "32.95 63.58 61.85 1.89 16.98 20.75 26.56 60.94 37.50 5.56 22.22 27.78 "
    "54.33 62.43 73.99 7.55 16.67 30.19 46.88 53.13 51.56 16.67 22.22 27.78",
    "tab06_hyperparameters": "68.5 72.8 69.5 71.3 71.0",
    "tab07_replay_sampling": "72.8 69.9 70.3",
    "tab08_latency": "1,800 62.37 2,300 54.12 2,300 72.80 16,880 80.28",
    "tab09_llm_critic": "88 86 72.8 78 86 70.1",
}


@pytest.mark.parametrize("name", IN_THE_PAPER)
def test_a_notebook_shows_the_paper_s_table_with_ours_beneath_each_number(name, monkeypatch):
    """The cell that shows it, run on the committed record."""
    cells = nbformat.read(paths.notebooks() / f"{name}.ipynb", as_version=4).cells
    (cell,) = [one.source for one in cells if "printed(" in one.source]
    record, drawn = records.load(name, "laptop", paths.reference()), []
    methods = {row["variant"] for row in record["rows"] if row["metric"] == "recall@5"}
    monkeypatch.setattr(tables, "html", lambda *given: drawn.append(given) or "")
    known = {"tables": tables, "paper": paper, "latency": latency, "methods": methods, "record": record}
    exec(cell, known | record["parameters"])
    ((frame, caption),) = drawn
    numbers = frame.xs("paper", level=-1).to_numpy().ravel()
    assert [one for one in numbers if one] == IN_THE_PAPER[name].split()
    beneath = " ".join(line[-1] for line in frame.index).replace("paper measured", "")
    assert "paper" not in beneath
    assert ("LoCoMo stands in for LongMemEval" in caption) is (name != "tab05_query_types")
    assert (latency.machine() in caption) is (name == "tab08_latency")


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
