"""Records: rows, verdicts, provenance, and the comparison with the committed record."""

import json
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earlib import paper, paths, records
from earlib.experiments import several
from earlib.records import verdicts

ELSEWHERE = {"id": "tab03", "dataset": "longmemeval", "encoder": "contriever"}
PROVENANCE = {"dataset": "d1", "encoder": "e1", "packages": {"earlib": "0.1.0"}, "commit": None}
PARAMETERS = {"seeds": 3, "rate": 0.001}
percent = st.floats(0, 100)


def measured(
    variant="ear", value=45.0, against=ELSEWHERE, dataset="locomo", encoder="minilm", metric="recall@5", **more
):
    interval = {"measured": value, "std": 0.8, "low": value - 4, "high": value + 5}
    counts = {"n_queries": 308, "seeds": 3, "excluded": 0}
    return records.row(dataset, encoder, variant, metric, against=against, **interval, **counts, **more)


def ablation(value=45.0, profile="laptop", parameters=PARAMETERS, provenance=PROVENANCE):
    better = {"compared_with": "rmm", "difference": value - 31, "difference_low": value - 35, "difference_high": value}
    rows = [
        measured("rmm", 31.0),
        measured("ear", value, **better, sees_gold=True, headline=True),
        records.row("locomo", "minilm", "ear", "j", against={**ELSEWHERE, "id": "tab02"}, reason="no language model"),
        records.row("locomo", "minilm", "ear", "latency", measured=0.0123, varies=True),
    ]
    return records.record("tab03_ablation", "Ablation study", profile, parameters, provenance, rows)


def judged(*rows):
    """The rows of a record made of these."""
    return records.record("t", "t", "laptop", PARAMETERS, PROVENANCE, list(rows))["rows"]


def commit(record, places, change=lambda text: text):
    """Puts a record where the reference lies."""
    records.save(record)
    file = places / "results" / record["profile"] / f"{record['id']}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = (places / "new" / record["profile"] / file.name).read_text()
    file.write_text(change(text))
    return file


# -- rows and verdicts


def test_the_papers_number_is_looked_up():
    row = measured("ear_adapter")
    assert (row["reported"], row["printed"]) == (72.8, "72.80")
    assert (row["reported_dataset"], row["reported_encoder"]) == ("longmemeval", "contriever")
    assert "reported" not in measured("equal_calls_2")
    with pytest.raises(KeyError, match="tab03"):
        measured(against={"id": "tab3"})
    assert records.row("toy", None, "ear", "recall@5", measured=50.0, std=float("nan"))["std"] is None  # of one seed


def test_numbers_of_the_paper_that_were_not_measured_have_a_reason():
    here = measured("ear", 56.0, {"id": "tab02"}, "locomo", "contriever")
    lacking = {("longmemeval", None): "no file", ("locomo", "gte"): "no weights"}
    found = several.Several(["locomo", "longmemeval"], ["contriever", "gte"], [], lacking)
    absent = records.not_run("tab02", [here], found)
    assert len(absent) == len(paper.reported("tab02")) - 1 and all(row["measured"] is None for row in absent)
    why = {(row["dataset"], row["encoder"]): row["reason"] for row in absent}
    assert why == {
        **{("longmemeval", encoder): "no file" for encoder in paper.ENCODERS},
        ("locomo", "gte"): "no weights",
        ("locomo", "stella"): "Stella is not run in this profile",
        ("locomo", "contriever"): "this notebook does not measure it",
    }


@pytest.mark.parametrize(
    ("value", "half_digit", "expected"),
    [
        # 57.0 is 7 away, within sqrt(2) times 5; downwards the half is 4
        ((50, 46, 55), 0.005, {55: "agrees", 55.06: "nearly", 57.0: "nearly", 57.1: "differs", 43: "differs"}),
        ((1540, None, None), 0.5, {1540: "agrees", 1539: "differs"}),
        ((72.84, None, None), 0.05, {72.8: "agrees"}),
        ((72.84, None, None), 0.005, {72.8: "differs"}),
        ((50, 39, 61), 0.05, {51: "too few questions", 64: "too few questions", 66: "differs"}),  # can still exclude
    ],
)
def test_closeness_by_example(value, half_digit, expected):
    assert {reported: verdicts.closeness(*value, reported, half_digit) for reported in expected} == expected


@given(percent, percent, st.floats(0, 10), st.floats(0, 10))
def test_closeness_is_ordered_by_distance(measured, reported, below, above):
    order = ["agrees", "nearly", "differs"]
    low, high = measured - below, measured + above
    verdict = verdicts.closeness(measured, low, high, reported, 0.005)
    nearer = verdicts.closeness(measured, low, high, (measured + reported) / 2, 0.005)
    assert order.index(nearer) <= order.index(verdict)
    outside = max(low - reported, reported - high)  # half of the last printed digit, 0.005, is allowed
    assert verdict == "agrees" if outside < 0.004 else outside < 0.006 or verdict != "agrees"
    assert verdicts.closeness(measured, low, high, measured, 0.005) == "agrees"


def test_verdicts_of_a_record():
    rows = ablation()["rows"]
    assert [row["verdict"] for row in rows] == ["another setting", "same direction", "not run", "not in the paper"]
    own = ({"id": "tab03"}, "locomo", "contriever")
    found = judged(
        measured("ear", 56.0, *own), measured("rmm", 31.0, *own),
        measured(None, 1540.0, {"id": "tab01"}, "locomo", None, "queries"),
    )  # fmt: skip
    assert [row["verdict"] for row in found] == ["agrees", "nearly", "agrees"]


@pytest.mark.parametrize(
    ("difference", "low", "high", "verdict"),
    [(25.0, 20.0, 30.0, "agrees"), (2.0, 1.0, 3.0, "differs"), (25.0, 10.0, 40.0, "too few questions")],
)
def test_in_the_papers_setting_the_difference_is_judged_too(difference, low, high, verdict):
    own, gap = ({"id": "tab03"}, "locomo", "contriever"), {"difference_low": low, "difference_high": high}
    printed = [paper.value("tab03", variant=name, dataset="locomo", encoder="contriever") for name in ("ear", "rmm")]
    ear = measured("ear", printed[0], *own, compared_with="rmm", difference=difference, **gap)
    ear |= {"low": printed[0] - 3, "high": printed[0] + 3}
    found = judged(measured("rmm", printed[1], *own), ear)[1]
    assert (found["verdict"], found["difference_verdict"]) == ("agrees", verdict)
    assert records.shown(found) == f"agrees; difference {verdict}"


def test_latency_and_counts_without_an_interval_are_not_judged_and_a_printed_number_counts_once():
    late = measured("ear", 17.0, {"id": "tab08"}, "longmemeval", "contriever", "latency")
    early = {"id": "sample_efficiency", "dataset": "longmemeval", "encoder": None, "metric": "training_queries"}
    passed = measured("ear", 80.0, early, "longmemeval", None, "surpasses_after")
    passed |= {"low": None, "high": None}
    twice = [measured("ear", 56.0, {"id": "tab03"}, "locomo", "contriever", over=one) for one in (None, "rmm")]
    found = judged(late, passed, *twice)
    assert [row["verdict"] for row in found] == ["not judged", "not judged", "agrees", "agrees"]
    assert records.tally(found) == {"not judged": 2, "agrees": 1}


def test_a_number_compared_with_two_definitions_counts_by_the_strict_one():
    own = ({"id": "tab02", "metric": "recall@5"}, "longmemeval", "contriever")
    found = judged(measured("ear", 50.0, *own), measured("ear", 80.0, *own, "fractional recall@5"))
    assert [(row["verdict"], row["printed"]) for row in found] == [("differs", "80.28"), ("agrees", "80.28")]
    assert records.tally(found) == {"differs": 1}


@pytest.mark.parametrize(
    ("low", "high", "variant", "other", "verdict"),
    [
        (2.0, 9.0, "ear", "rmm", "same direction"),
        (-9.0, -2.0, "ear", "rmm", "other direction"),
        (-1.0, 9.0, "ear", "rmm", "undecided"),
        (-9.0, -2.0, "rmm", "ear", "same direction"),
        (2.0, 9.0, "ear", "equal_calls_2", "not in the paper"),
    ],
)
def test_direction_follows_the_interval_and_the_paper(low, high, variant, other, verdict):
    row = measured(variant, compared_with=other, difference_low=low, difference_high=high)
    assert judged(measured(other, 31.0), row)[1]["verdict"] == verdict


def test_a_comparison_can_name_other_keys():
    def at(rounds, **more):
        against = {**ELSEWHERE, "id": "tab06", "rounds": rounds, "replay_size": 4}
        return measured("ear_adapter", against=against, rounds=rounds, **more)

    worse = at(2, compared_with={"rounds": 4}, difference_low=-6.0, difference_high=-1.0)
    usual, worse = judged(at(4), worse)
    assert (usual["verdict"], worse["verdict"]) == ("another setting", "same direction")
    assert worse["reported"] == paper.value("tab06", rounds=2)


@pytest.mark.parametrize("profile", ["smoke", "laptop", "laptop-large"])
def test_committed_records_do_not_differ_from_themselves_and_verdicts_follow_from_their_numbers(profile):
    for file in (paths.reference() / profile).glob("*.json"):
        stored = records.load(file.stem, profile, paths.reference())
        head = [stored[key] for key in ("id", "title", "profile", "parameters", "provenance")]
        assert records.record(*head, stored["rows"])["rows"] == stored["rows"], file.stem
        assert records.changes(stored, json.loads(file.read_text())) == [], file.stem


# -- what a record refuses


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([records.row("locomo", "minilm", "ear", "j")], r"rows\.0 \(locomo/minilm/ear/j\).*needs a reason"),
        ([measured(value=float("nan"))], r"rows\.0\.measured.*finite number.*nan"),
        ([measured(value=40.0) | {"measured": "40"}], r"rows\.0\.measured.*valid number.*40"),
        ([measured() | {"high": None}], "interval needs both ends"),
        ([measured() | {"low": 60.0}], "the lower first"),
        ([measured() | {"printed": None}], "go together"),
        ([measured(), measured()], "two rows for locomo/minilm/ear/recall@5"),
        ([measured(compared_with="rmm")], "compared_with: the record has no row with"),
        ([measured("rmm"), measured(compared_with="rmm")], "difference_low, difference_high"),
    ],
)
def test_unsound_rows_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        judged(*rows)
    with pytest.raises(ValueError, match="record ../t: id"):
        records.record("../t", "t", "laptop", {}, {}, [])


# -- saving and loading


def test_saved_and_loaded(places):
    record = ablation(np.float64(45.123456789))
    records.save(record)
    file = places / "new" / "laptop" / "tab03_ablation.json"
    assert records.load("tab03_ablation", "laptop") == record
    assert record["rows"][1]["measured"] == 45.1235
    assert record["rows"][1]["excluded"] == 0  # a zero is a value
    text = file.read_text()
    records.save(records.load("tab03_ablation", "laptop"))
    assert file.read_text() == text
    assert sum(line.startswith('  {"dataset"') for line in text.splitlines()) == 4
    design = ["dataset", "encoder", "variant", "metric", "n_queries", "seeds", "measured", "std", "low", "high",
              "reported", "verdict", "reason"]  # fmt: skip
    assert [key for key in record["rows"][1] if key in design] == design
    for row, stored in zip(record["rows"], json.loads(text)["rows"], strict=True):
        assert stored == {key: one for key, one in row.items() if one is not None or key not in design}


def test_a_record_that_does_not_exist_is_named(places):
    with pytest.raises(FileNotFoundError, match=r"laptop/tab09_x\.json: no such record; .*earlib\.run tab09_x"):
        records.load("tab09_x", "laptop")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:200], "tab03_ablation.json: not JSON"),
        (
            lambda text: text.replace('"measured": 31.0', '"measured": "31"'),
            r"json: rows\.0\.measured .*valid number.*31",
        ),
        (lambda text: text.replace('"title": "Ablation study",', ""), "json: title: Field required"),
        (lambda text: text.replace("03_ablation", "02_main"), "json: id: expected tab03_ablation, found tab02_main"),
        (lambda text: "[]", "json: the whole: "),
    ],
)
def test_what_cannot_be_loaded_says_what_and_where(places, change, message):
    commit(ablation(), places, change)
    with pytest.raises(ValueError, match=message):
        records.load("tab03_ablation", "laptop", places / "results")


# -- the check against the reference


@pytest.fixture
def told(capsys):
    """What the comparison of a record with the reference says."""

    def compare(record, tolerance=0.5):
        records.compare_with_reference(record, tolerance)
        return capsys.readouterr().out.splitlines()

    return compare


def test_check_within_tolerance(places, told):
    commit(ablation(45.0), places)
    varies = "; 1 that varies between machines not compared"
    assert told(ablation(45.4)) == [f"reference: 2 of 2 values within 0.5 points{varies}"]
    commit(ablation(), places, lambda text: text.replace('"measured": 31.0', '"measured": 31.6'))
    off = "  locomo/minilm/rmm/recall@5: 31, reference 31.6"
    assert told(ablation()) == [f"reference: 1 of 2 values within 0.5 points{varies}", off]


def test_check_counts_points_and_missing_values(places, told):
    def record(*rows):
        return records.record("fig03", "t", "smoke", {}, PROVENANCE, list(rows))

    ear, rmm, retriever = (measured(variant, dataset="toy") for variant in ("ear", "rmm", "retriever"))
    then = record(ear, rmm, retriever)
    commit(then, places)
    assert told(then) == ["reference: 3 of 3 values within 0.5 points"]
    gone = records.row("toy", "minilm", "rmm", "recall@5", reason="too few questions")
    assert told(record(measured("ear", dataset="toy", queries=40), ear, gone)) == [
        "reference: 1 of 4 values within 0.5 points",
        "  toy/minilm/ear/recall@5/queries=40: not in the reference",
        "  toy/minilm/rmm/recall@5: not run, reference 45",
        "  toy/minilm/retriever/recall@5: in the reference only",
    ]


def test_check_knows_what_it_cannot_compare(places, told):
    assert told(ablation()) == ["no reference for these parameters"]
    commit(ablation(), places)
    other, *lines = told(ablation(parameters={"seeds": 5, "rate": 0.001}))
    assert other == "the committed record has seeds 3"
    assert lines[0] == "  locomo/minilm/ear/recall@5: 45, committed 45"
    newer = ablation(provenance={**PROVENANCE, "packages": {"earlib": "9.0"}})
    assert "the reference is of version 0.1.0, not 9.0: not compared" in told(newer)[0]
    commit(ablation(), places, lambda text: text.replace('"profile": "laptop"', '"profile": "smoke"'))
    assert "the reference is of profile smoke, not laptop: not compared" in told(ablation())[0]
    commit(ablation(), places, lambda text: text[:100])
    with pytest.raises(ValueError, match="tab03_ablation.json: not JSON"):
        told(ablation())


@pytest.mark.parametrize(
    ("tampered", "off"),
    [
        ({"difference": 64.0}, "difference 14, reference 64"),
        ({"difference_low": 7.0}, "difference_low 10, reference 7"),
        ({"printed": "81.00"}, "printed 80.28, reference 81.00"),
    ],
)
def test_check_compares_what_conclusions_hang_on(places, told, tampered, off):
    better = {"difference": 14.0, "difference_low": 10.0, "difference_high": 18.0, "p": 0.01, "compared_with": "rmm"}
    rows = [measured("rmm", 31.0), measured("ear", **better)]
    made = records.record("tab03_ablation", "t", "laptop", PARAMETERS, PROVENANCE, rows)
    file = commit(made, places)
    content = json.loads(file.read_text())
    content["rows"][1] |= tampered
    file.write_text(json.dumps(content))
    assert off in "\n".join(told(made, 1))


# -- provenance


def test_the_commit_is_the_last_that_touched_the_source(tmp_path, monkeypatch):
    def git(*arguments):
        name = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        return subprocess.run(["git", "-C", tmp_path, *name, *arguments], check=True, capture_output=True, text=True)

    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert records.provenance("d", "e")["commit"] is None
    (tmp_path / "earlib").mkdir()
    git("init", "-q")
    for file in ("earlib/core.py", "record.json"):  # source, then results
        (tmp_path / file).write_text("1")
        git("add", ".")
        git("commit", "-qm", file)
    source = git("rev-parse", "HEAD^").stdout.strip()
    assert records.provenance("d", "e")["commit"] == source
    (tmp_path / "earlib" / "core.py").write_text("2")
    assert records.provenance("d", "e")["commit"] == f"{source} and local changes"


def test_provenance_names_versions(monkeypatch):
    found = records.provenance({"locomo": "d1"}, {"minilm": "e1"}, core="c1")
    assert found["packages"]["numpy"] == np.__version__
    assert (found["dataset"], found["core"]) == ({"locomo": "d1"}, "c1")
    monkeypatch.setenv("PATH", "")
    assert records.provenance("d", "e")["commit"] is None
