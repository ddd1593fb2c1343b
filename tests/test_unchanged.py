"""A run whose values are those in place leaves them, byte for byte; anything else that differs replaces them."""

import io
import json
import shutil
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest

from earlib import paths
from earlib.harness import notebooks
from earlib.harness.pictures import alike

SMOKE = paths.reference() / "smoke"
NAME = "fig02_walkthrough"  # most of its rows vary


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Publishes the committed result as that of a new run, when it was altered; returns what has changed."""
    monkeypatch.setenv("EARLIB_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("EARLIB_BUILD", str(tmp_path / "build"))
    shutil.copytree(SMOKE, tmp_path / "results" / "smoke", ignore=lambda _, names: [n for n in names if NAME not in n])
    files = {f"smoke/{file.name}": file.read_bytes() for file in SMOKE.glob(f"{NAME}*")}
    files[f"{NAME}.ipynb"] = files.pop(f"smoke/{NAME}.ipynb")

    def publish(of_record=None, of_notebook=None, tolerance=None, rewrite=False):
        for name, alter in ((f"smoke/{NAME}.json", of_record), (f"{NAME}.ipynb", of_notebook)):
            if alter:
                content = json.loads(files[name])
                alter(content)
                files[name] = json.dumps(content).encode()
        plan = SimpleNamespace(name=NAME, profile="smoke", every={"tolerance": tolerance})
        told, stays = notebooks.publish(files, plan, rewrite)
        assert stays is (told in ([], ["values within 0.1"]) and not rewrite)
        return told

    return publish


def there(kind="results"):
    folder = (paths.results() if kind == "results" else paths.unchanged()) / "smoke"
    return {file.name: file.read_bytes() for file in folder.glob("*")}


def row(content, varies):
    """The first row with a value, of those that vary or of the others."""
    return next(one for one in content["rows"] if one["measured"] and bool(one.get("varies")) is varies)


def other_occasion(content):
    content["provenance"]["commit"] = "0" * 40
    content["provenance"]["packages"] |= {"numpy": "9.0", "scipy": None}


def other_last_digit(content):
    row(content, varies=False)["measured"] *= 1 + 2e-6


def other_varying_value(content):
    row(content, varies=True)["measured"] += 1


@pytest.mark.parametrize("alter", [None, other_occasion, other_last_digit, other_varying_value])
def test_what_says_the_same_stays_and_the_new_files_can_be_seen(run, alter):
    before = there()
    assert run(alter) == [] and there() == before
    made = there("unchanged")
    assert set(made) == set(before) and json.loads(made[f"{NAME}.json"])["rows"]
    assert (json.loads(made[f"{NAME}.json"]) == json.loads(before[f"{NAME}.json"])) is (alter is None)


def test_a_rewrite_replaces_also_what_says_the_same(run):
    assert run(other_occasion, rewrite=True) is None and not there("unchanged")
    assert json.loads(there()[f"{NAME}.json"])["provenance"]["commit"] == "0" * 40


def other_value(content):
    row(content, varies=False)["measured"] += 0.01


def other_verdict(content):
    content["rows"][0]["verdict"] = "agrees"


def varying_value_lost(content):
    row(content, varies=True).update(measured=None, reason="no model")


def of_varying(**values):
    """A value of the same kind, and something else of its row."""
    return lambda content: [other_varying_value(content), row(content, varies=True).update(values)]


def other_source(content):
    content["cells"][-1]["source"].append("\n# more")


def other_parameter(content):
    (cell,) = [one for one in content["cells"] if "injected-parameters" in one["metadata"].get("tags", [])]
    cell["source"] = "".join(cell["source"]).replace("0.1", "0.2")


def other_text(content):
    printed(content)["text"] = ["reference: another\n"]


def other_number_in_text(content):
    printed(content)["text"] = [line.replace("0.1", "-1.2e-05") for line in printed(content)["text"]]


def printed(content):
    """The last output of a notebook that is text."""
    return [one for cell in content["cells"] for one in cell.get("outputs", []) if one.get("text")][-1]


@pytest.mark.parametrize(
    "of_record, of_notebook, told",
    [
        (other_value, None, "1 of {all} rows"),
        (other_verdict, None, "1 of {all} rows"),
        (varying_value_lost, None, "1 of {all} rows"),
        (of_varying(reported=1.8, printed="1.80"), None, "1 of {all} rows"),
        (of_varying(reason="made dialogues"), None, "1 of {all} rows"),
        (of_varying(unit="s"), None, "2 of {more} rows"),
        (of_varying(n_queries=5), None, "1 of {all} rows"),
        (lambda content: content["rows"].reverse(), None, "order of rows"),
        (lambda content: content["rows"].pop(), None, "1 of {all} rows"),
        (lambda content: content["parameters"].update(learned=50), None, "parameters"),
        (lambda content: content["provenance"].update(encoder="another"), None, "provenance"),
        (lambda content: content["provenance"]["packages"].update(earlib="9.0"), None, "provenance"),
        (lambda content: content.update(title="Another"), None, "title"),
        (None, other_source, "cells"),
        (None, other_parameter, "cells"),
        (None, other_text, "text"),
        (None, other_number_in_text, "text"),
        (other_last_digit, other_text, "text"),  # it counts also where numbers of a record differ
        (other_varying_value, other_text, "text"),
    ],
)
def test_a_changed_record_or_notebook_replaces_all_files(run, of_record, of_notebook, told):
    before = there()
    count = len(json.loads(before[f"{NAME}.json"])["rows"])
    assert run(of_record, of_notebook) == [told.format(all=count, more=count + 1)]
    assert not there("unchanged")
    for alter, kind in ((of_record, "json"), (of_notebook, "ipynb")):
        assert alter is None or there()[f"{NAME}.{kind}"] != before[f"{NAME}.{kind}"]


@pytest.mark.parametrize(
    "far, of_notebook, told",
    [
        (0.09, None, ["values within 0.1"]),
        (-0.09, other_text, ["values within 0.1"]),
        (0.09, other_source, ["values within 0.1", "cells"]),
        (0.11, None, ["1 of {all} rows"]),
    ],
)
def test_values_within_the_tolerance_stay_whatever_text_and_pictures_say_of_them(run, far, of_notebook, told):
    before = there()
    count = len(json.loads(before[f"{NAME}.json"])["rows"])

    def nearby(content):
        row(content, varies=False)["measured"] += far

    assert run(nearby, of_notebook, tolerance=0.1) == [one.format(all=count) for one in told]
    assert (there() == before) is (told == ["values within 0.1"])


def test_a_lost_value_or_another_parameter_is_no_matter_of_tolerance(run):
    assert run(varying_value_lost, tolerance=0.1) != ["values within 0.1"]
    assert run(lambda content: content["parameters"].update(learned=50), tolerance=0.1) == ["parameters"]


def test_numbers_in_text_and_pictures_may_differ_where_what_they_show_varies(run):
    before, file = there(), paths.results() / "smoke" / f"{NAME}.png"
    assert run(other_varying_value, other_number_in_text) == [] and there() == before
    file.write_bytes(png(recoloured(picture(before[file.name]))))
    assert run() == []


def picture(content):
    return np.asarray(PIL.Image.open(io.BytesIO(content)).convert("RGB"))


def png(pixels):
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, format="png")
    return file.getvalue()


def recoloured(pixels):
    """The picture with its blue curve, or what else is blue, in green."""
    blue = np.abs(pixels.astype(int) - (1, 115, 178)).sum(-1) < 60
    assert 1000 < blue.sum() < 0.1 * blue.size
    return np.where(blue[..., None], pixels[..., [1, 2, 0]], pixels)


def smoothed(pixels):
    """The picture with edges as another library smooths them."""
    height, width = pixels.shape[:2]
    return np.asarray(PIL.Image.fromarray(pixels).resize((width - 2, height)).resize((width, height)))


@pytest.mark.parametrize("name", [f"{NAME}_candidates", "fig03_sample_efficiency", "tab05_query_types"])
def test_pictures_are_alike_whatever_smooths_their_edges_but_not_with_a_colour_or_line_changed(name):
    file = SMOKE / f"{name}.png"
    pixels = picture(file.read_bytes())
    lined = pixels.copy()
    lined[:, 300:303] = 1, 115, 178
    assert alike(file, file) and alike(io.BytesIO(png(smoothed(pixels))), file)
    for other in (recoloured(pixels), lined, pixels[:-9], np.full_like(pixels, 255)):
        assert not alike(io.BytesIO(png(other)), file)


@pytest.mark.parametrize("content", [b"", b"no picture", (SMOKE / f"{NAME}.png").read_bytes()[:900], None])
def test_a_picture_in_place_that_is_changed_or_broken_is_replaced(run, content):
    whole, file = there(), paths.results() / "smoke" / f"{NAME}.png"
    file.write_bytes(content if content is not None else png(recoloured(picture(whole[file.name]))))
    assert run() == ["pictures"] and there()[file.name] == whole[file.name]


def test_what_is_missing_or_broken_is_written(run):
    folder, whole = paths.results() / "smoke", there()
    (folder / f"{NAME}.ipynb").unlink()  # as in a clone, of profiles whose notebooks are not committed
    assert run(other_occasion) == [] and set(there()) == set(whole)
    assert there()[f"{NAME}.json"] == whole[f"{NAME}.json"]
    for kind in ("json", "ipynb"):
        (folder / f"{NAME}.{kind}").write_text("{cut")
        assert run() == ["a file that cannot be read"] and set(there()) == set(whole)
        json.loads(there()[f"{NAME}.{kind}"])
    shutil.rmtree(folder)
    assert run() is None and set(there()) == set(whole)
