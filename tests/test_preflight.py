"""The checks before the first notebook: all that is missing is told at once, and costs no more than it must."""

import shutil
import subprocess
import sys

import pytest
from made_notebooks import PARAMETERS, write_notebook, write_profile
from test_encoders import checkpoint, tiny  # noqa: F401 - fixtures

from earlib.data import benchmarks, encoders
from earlib.harness import preflight, profiles, runner
from earlib.harness.notebooks import Unusable

LIMITS = {"max_calls": None, "max_cost": None}
QUICK = """
import sys, time
from earlib.harness import preflight, profiles
plans = profiles.make_plans(["all"], "smoke", {})
began = time.process_time()
assert preflight.look(plans, {"max_calls": None, "max_cost": None}) == (plans, []), "something is missing"
print(time.process_time() - began, "openai" in sys.modules)
"""


def plans(root, encoder="minilm", further="", profile="title: x\n"):
    parameters = PARAMETERS.replace('"minilm"', repr(encoder)) + f'\ndataset: str = "toy"\n{further}'
    write_notebook(root, "plain", "print(1)", parameters=parameters)
    write_profile(root, profile)
    return profiles.make_plans(["all"], "smoke", {})


def test_smoke_lacks_nothing_and_is_looked_through_in_no_time():
    done = subprocess.run([sys.executable, "-c", QUICK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, imported = done.stdout.split()
    assert float(seconds) < 2 and imported == "False"


def test_all_that_is_missing_is_told_at_once(root, hub, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("EARLIB_DATA", str(tmp_path_factory.mktemp("data")))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "EARLIB_DEVICE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(preflight, "ROOM", 1e18)
    further = 'llm: str = "gpt-5-mini"\nrerankers: list[str] = ["bm25", "monot5"]\nfetch: bool = True'
    lists = PARAMETERS.replace('encoder: str = "minilm"', 'encoder: list[str] = ["minilm", "contriever"]')
    write_notebook(root, "several", "1", parameters=lists + f'\ndataset: list[str] = ["toy", "locomo"]\n{further}')
    profile = "title: x\ndevice: cuda:63\nnotebooks: {plain: {dataset: locomo}}\n"
    with pytest.raises(Unusable) as refused:
        preflight.look(plans(root, further=further, profile=profile), LIMITS)
    first, *told = str(refused.value).split("\n- ")
    expected = [
        ("device cuda:63: this machine offers", "choose EARLIB_DEVICE=cpu"),
        ("expected 1000000000.0 GB of free disk, found ", "EARLIB_CACHE"),
        ("locomo10.json cannot be had: ", "EARLIB_DATA. Left out: plain. Without some values: several"),
        ("contriever: no files in", "hf download facebook/contriever", "Without some values: several"),
        ("monot5: no files in", "EARLIB_MODELS. Left out: plain. Without some values: several"),
        ("api_key: https://api.openai.com/v1 needs one", "set OPENAI_API_KEY. "),
    ]
    assert first == "nothing can run as it was asked for:" and len(told) == len(expected)
    for line, parts in zip(told, expected, strict=True):
        assert all(part in line for part in parts), line


def test_without_the_weights_of_one_encoder_the_others_run(root, hub, capsys):
    assert preflight.look(plans(root, "contriever"), LIMITS)[0] == []
    assert runner.main(["plain", "--profile", "smoke"]) == 2
    assert "- contriever: no files in" in capsys.readouterr().err
    lists = PARAMETERS.replace('encoder: str = "minilm"', 'encoder: list[str] = ["contriever", "minilm"]')
    write_notebook(root, "plain", "1", parameters=lists + '\ndataset: list[str] = ["toy"]')
    found = profiles.make_plans(["plain"], "smoke", {})
    able, (line,) = preflight.look(found, LIMITS)
    assert able == found and line.endswith("Without some values: plain")  # the notebook's own rows say why


def test_embeddings_in_the_cache_stand_for_the_weights(root, hub, tiny, monkeypatch, tmp_path):  # noqa: F811
    toy, found = benchmarks.load("toy"), plans(root, "tiny")
    for part, kind in ((toy.memories, "memory"), (toy.queries, "query")):
        assert preflight.look(found, LIMITS) == (found, [])
        encoders.encode([one.text for one in part], "tiny", kind)
    monkeypatch.setenv("EARLIB_MODELS", str(tmp_path / "nowhere"))
    assert preflight.look(found, LIMITS) == (found, [])
    shutil.rmtree(tmp_path / "cache")
    assert preflight.look(found, LIMITS)[0] == []


def test_other_machines_have_weights_and_devices_of_their_own(root, hub):
    found = plans(root, "contriever", profile="title: x\ndevice: cuda:63\n")
    assert preflight.look(found, LIMITS, elsewhere=True) == (found, [])
