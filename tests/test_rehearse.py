"""A part of the rehearsal of the profile `paper` (`make rehearse`), with what costs rows and no notebook missing."""

import pytest
import rehearse
import yaml
from scripted_server import ScriptedServer

from earlib import records

NAMES = ("tab02_main_results", "tab09_llm_critic", "claims")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A rehearsal in which two of the three encoders are missing, and that has run."""
    folder = tmp_path_factory.mktemp("rehearsal")
    rehearse.prepare(folder, models=("contriever",), seeds=2, llm_questions=5)
    with ScriptedServer(rule=rehearse.replies) as server:
        status, lines = rehearse.run(NAMES, folder, OPENAI_BASE_URL=server.url)
    assert status == 0, "\n".join(lines)
    return folder, lines


def rows_of(place, name):
    record = records.load(name, rehearse.PROFILE, place / "results")
    assert record["profile"] == rehearse.PROFILE and rehearse.SAID in record["provenance"]["packages"]["earlib"]
    return record["rows"]


def test_both_datasets_run_with_the_encoder_at_hand_and_the_others_are_dashes(place):
    folder, lines = place
    for encoder in ("stella", "gte"):
        (told,) = [line for line in lines if line.startswith(f"missing: {encoder}: no files in")]
        assert "hf download" in told or "Put the files" in told
    rows = rows_of(folder, "tab02_main_results")
    recall = [row for row in rows if row["metric"] == "recall@5" and row["variant"] == "ear"]
    run = {(row["dataset"], row["encoder"]) for row in recall if row["measured"] is not None}
    assert run == {("locomo", "contriever"), ("longmemeval", "contriever")}
    reasons = {row["encoder"]: row["reason"] for row in recall if row["measured"] is None}
    assert set(reasons) == {"stella", "gte"} and all(reasons.values())


def test_nothing_of_it_can_be_taken_for_a_result(place):
    folder, _ = place
    for name in NAMES:
        rows_of(folder, name)
        assert "(stand-in)" in (folder / "results" / rehearse.PROFILE / f"{name}.ipynb").read_text(), name
    assert not (rehearse.ROOT / "results" / rehearse.PROFILE).exists()


def test_a_model_of_the_papers_name_at_an_address_that_nobody_declared_is_not_the_papers(place):
    rows = rows_of(place[0], "tab02_main_results")
    graded = [row for row in rows if row["metric"] in ("f1", "j") and row["measured"] is not None]
    assert graded and {row["llm"] for row in graded} == {"gpt-5-mini at 127.0.0.1"}
    assert not [row for row in graded if row["verdict"] in ("agrees", "nearly", "differs", "too few questions")]


def test_a_limit_and_a_missing_dataset_cost_their_rows_and_no_others(place):
    folder, _ = place

    def retrieved():
        rows = [row for row in rows_of(folder, "tab02_main_results") if row["dataset"] == "locomo"]
        return [row for row in rows if row["measured"] is not None and not row.get("varies")]

    before = retrieved()
    data = folder / "data" / "longmemeval_s_cleaned.json"
    data.rename(data.with_suffix(".away"))
    (folder / "cache" / "llm" / "replies.sqlite").unlink()
    with ScriptedServer(rule=rehearse.replies) as server:
        options = ["tab02_main_results", "--max-calls", "3"]
        status, lines = rehearse.run(options, folder, OPENAI_BASE_URL=server.url)
        assert status == 0 and len(server.requests) <= 3, "\n".join(lines)
    assert [line for line in lines if line.startswith("missing: longmemeval_s_cleaned.json cannot be had")]
    assert before and retrieved() == before
    graded = [row for row in rows_of(folder, "tab02_main_results") if row["metric"] in ("f1", "j")]
    assert graded and all(row["measured"] is None and row["reason"] for row in graded)


def test_in_full_only_the_language_model_differs_from_the_profile(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(rehearse.made_longmemeval, "write", lambda path: sizes.append(path.write_text("[]")))
    rehearse.prepare(tmp_path, models=(), full=True)
    profiles = tmp_path / "notebooks" / "profiles"
    full, paper = (yaml.safe_load((profiles / f"{name}.yaml").read_text()) for name in (rehearse.PROFILE, "paper"))
    assert rehearse.SAID in full.pop("title") and paper.pop("title")
    assert paper["defaults"].keys() >= {"llm", "judge"}
    paper["defaults"] |= {"llm": "none", "judge": "none"}
    assert full == paper and len(sizes) == 1
