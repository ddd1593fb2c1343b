"""Settings of several datasets and encoders: what is missing costs its own rows, and which are split both ways."""

import pytest

from earlib.experiments import several


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


def test_a_single_name_is_a_list_of_one():
    found = several.find("toy", "minilm", seeds=2)
    assert (found.dataset, found.encoder, len(found.made)) == (["toy"], ["minilm"], 1)


@pytest.mark.parametrize("scopes, splits", [("aab", 2), ("abc", 1), ("aaa", 1)])
def test_conversations_are_held_out_where_questions_share_them(monkeypatch, scopes, splits):
    class Asked:
        asked = [type("Query", (), {"scope": one}) for one in scopes]

    monkeypatch.setattr(several, "benchmark", lambda name: Asked)
    setting = several.Setting(dataset="toy", split="fixed")
    assert [one.split for one in several.by_split([setting])] == ["fixed", "conversation"][:splits]
    apart = several.Setting(dataset="toy", split="conversation")
    assert several.by_split([apart]) == [apart]
