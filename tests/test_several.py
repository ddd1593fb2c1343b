"""Settings of several datasets and encoders: what is missing costs its own rows, and which are split both ways."""

from types import SimpleNamespace

import pytest

from earlib.experiments import comparisons, several


def test_what_is_missing_has_a_reason_and_the_rest_is_run(hub, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("EARLIB_DATA", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    found = several.find(["toy", "locomo"], ["contriever", "minilm"], seeds=2)
    assert [(one.dataset, one.encoder, one.seeds) for one in found.made] == [("toy", "minilm", 2)]
    assert found.lacking == {
        ("toy", "contriever"): "Contriever is not on this machine",
        ("locomo", None): "LoCoMo is not on this machine",
    }
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and "hf download facebook/contriever" in told[0] and "EARLIB_DATA" in told[1]
    with pytest.raises(OSError, match="locomo10.json cannot be had"):
        several.find("locomo", "minilm")


@pytest.mark.parametrize("scopes, splits", [("aab", 2), ("abc", 1), ("aaa", 1)])
def test_conversations_are_held_out_where_questions_share_them(monkeypatch, scopes, splits):
    asked = [SimpleNamespace(scope=one) for one in scopes]
    monkeypatch.setattr(several, "benchmark", lambda name: SimpleNamespace(asked=asked))
    setting = several.Setting(dataset="toy", split="fixed")
    assert [one.split for one in several.by_split([setting])] == ["fixed", "conversation"][:splits]
    apart = several.Setting(dataset="toy", split="conversation")
    assert several.by_split([apart]) == [apart]


def test_settings_that_cannot_be_had_have_rows_of_their_own_and_what_is_run_its_fingerprints():
    found = several.find("toy", "minilm", seeds=2)
    (setting,) = found.made
    assert (found.dataset, found.encoder) == (["toy"], ["minilm"])  # a single name is a list of one
    lacking = {("locomo", None): "no file", ("toy", "gte"): "no weights"}
    found = several.Several(["toy", "locomo"], ["minilm", "gte"], [setting], lacking)
    rows = [(row["dataset"], row["encoder"], row["variant"], row["reason"]) for row in found.dashes(["ear"])]
    files = [("locomo", encoder, "ear", "no file") for encoder in ("minilm", "gte")]
    assert rows == [("toy", "gte", "ear", "no weights"), *files]
    assert found.words == "on toy dialogues and LoCoMo with MiniLM and GTE"
    words = found._replace(dataset=["locomo"], encoder=["contriever", "stella", "gte"]).words
    assert words == "on LoCoMo with Contriever, Stella and GTE"
    assert [list(prints) for prints in found.fingerprints] == [["toy"], ["minilm"]]


def test_the_ends_of_curves_are_those_of_each_setting():
    points = [("toy", "random", 40), ("toy", "random", 172), ("toy", "conversation", 180), ("toy", "random", None)]
    rows = [{"dataset": one, "encoder": "minilm", "split": split, "calls": at} for one, split, at in points]
    ends = [(end["split"], end["calls"]) for end in several.ends(rows, "calls")]
    assert ends == [("random", 172), ("conversation", 180)]


def test_the_initial_drop_is_the_mean_of_the_first_two_evaluations_below_the_start():
    (setting,) = several.find("toy", "minilm", seeds=2, evaluate_every=40).made
    start, *points = comparisons.curve(setting, "rmm")
    (drop,) = comparisons.initial_drop(setting, "rmm")
    assert drop["measured"] == pytest.approx(start["measured"] - (points[0]["measured"] + points[1]["measured"]) / 2)
    assert drop["low"] <= drop["measured"] <= drop["high"] and drop["metric"] == "initial_drop"
