"""The report: contents of its pages, without a network, and remarks on incomplete results."""

import json
import re
import shutil
from collections import Counter

import nbformat
import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st

from earlib import __version__, paper, paths, records
from earlib.harness import notebooks, pages, tables
from earlib.harness.findings import finding

REPOSITORY = paths.ROOT
SMOKE = paths.reference() / "smoke"
IDS = ["tab01_dataset_stats", "tab03_ablation", "fig03_sample_efficiency"]  # in the order of the report
OWN = "fig03_sample_efficiency--seeds-1"
OF_BROWSERS = "math mrow mi mn mo mtext mspace mfrac msqrt mroot mtable mtr mtd mstyle mpadded mphantom mmultiscripts "
OF_BROWSERS += "mprescripts msub msup msubsup munder mover munderover"
MATHML = set(OF_BROWSERS.split())  # MathML Core


class Page:
    """Resources and structure of a page."""

    def __init__(self, text):
        self.soup = BeautifulSoup(text, "html.parser", multi_valued_attributes=None)
        self.tags = [(tag.name, tag.attrs) for tag in self.soup(True)]
        self.headings = [int(tag[1]) for tag, _ in self.tags if re.fullmatch("h[1-6]", tag)]
        self.links, self.ids = self.held("href", "a"), self.held("id", True)
        self.loads = [load for key in ("src", "srcset", "data", "poster") for load in self.held(key, True)]
        self.loads += self.held("href", "link")

    def held(self, key, tags):
        return [tag[key] for tag in self.soup(tags, attrs={key: True})]

    def text(self):
        return " ".join(self.soup.get_text(" ").split())

    def says(self, text):
        """True if it contains a text, whatever its markup."""
        return "".join(text.replace("`", "").split()) in "".join(self.text().split())


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with three notebooks, and their results in the profile smoke."""
    shutil.copytree(REPOSITORY / "notebooks" / "profiles", tmp_path / "notebooks" / "profiles")
    (tmp_path / "notebooks" / "profiles" / "smoke.yaml").write_text('title: "Smoke: made dialogues"\n')
    (tmp_path / "results" / "smoke").mkdir(parents=True)
    for file in SMOKE.iterdir():
        if file.stem in IDS:
            shutil.copy(file, tmp_path / "results" / "smoke")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setenv("EARLIB_RESULTS", str(tmp_path / "results"))
    for id in IDS:
        notebook = read(id)
        notebook.cells = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.update(outputs=[], execution_count=None)
        nbformat.write(notebook, tmp_path / "notebooks" / f"{id}.ipynb")
    return tmp_path


def folder():
    return paths.results() / "smoke"


def read(id):
    return nbformat.read(folder() / f"{id}.ipynb", as_version=4)


def change(id, edit):
    notebook = read(id)
    edit(notebook)
    nbformat.write(notebook, folder() / f"{id}.ipynb")


def change_record(id, edit, to=None):
    record = json.loads((folder() / f"{id}.json").read_text())
    edit(record)
    (folder() / f"{to or id}.json").write_text(json.dumps(record))


def remarks(id):
    """Remarks of an entry."""
    (entry,) = [entry for entry in pages.read(folder()) if entry.id == id]
    return "\n".join(entry.remarks)


# -- whole results


def test_a_report_of_whole_results(root, capsys):
    assert pages.main(["--profile", "smoke"]) is None
    out = capsys.readouterr().out
    assert out == f"{folder() / 'index.html'}: 3 pages; results missing: 0\n"
    made = {file.stem: Page(file.read_text()) for file in folder().glob("*.html")}
    assert set(made) == {"index", *IDS} and {f"{id}.html" for id in IDS} <= set(made["index"].links)
    beside = dict(zip(IDS, [IDS[1:2], [IDS[0], IDS[2]], IDS[1:2]], strict=True))
    for id in IDS:
        assert {"index.html", f"{id}.ipynb", f"{id}.json"} <= set(made[id].links)
        assert {f"{other}.html" for other in IDS} & set(made[id].links) == {f"{other}.html" for other in beside[id]}
    assert "Not made yet" not in made["index"].text()
    before = {file.name: file.read_bytes() for file in folder().iterdir()}
    pages.write(folder())
    assert {file.name: file.read_bytes() for file in folder().iterdir()} == before


def test_a_page_loads_nothing_from_elsewhere_and_can_be_read_by_anyone(root):
    pages.write(folder())
    for file in folder().glob("*.html"):
        text = file.read_text()
        page = Page(text)
        tags = Counter(tag for tag, _ in page.tags)
        assert not tags["script"] and not tags["iframe"] and "@import" not in text and "url(" not in text
        assert all(load.startswith("data:") or (folder() / load).exists() for load in page.loads)
        assert all(link.startswith(("#", "http")) or (folder() / link).exists() for link in page.links)
        assert ("html", {"lang": "en"}) in page.tags and tags["main"] == 1 and tags["title"] == 1
        assert page.headings[0] == 1 and page.headings.count(1) == 1
        assert all(after <= before + 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
        assert len(page.ids) == len(set(page.ids)), file
        pictures = [attributes for tag, attributes in page.tags if tag == "img"]
        assert all(len(picture["alt"]) > 10 and "No description" not in picture["alt"] for picture in pictures)
        assert all("width" in picture for picture in pictures if picture["src"].startswith("data:"))
        assert str(root) not in text
    boxes = sum("scroll" in attributes.get("class", "") and tag == "div" for tag, attributes in page.tags)
    assert boxes == tags["table"] > 0


def test_the_index_has_a_line_a_result_and_pictures_that_say_it(root):
    shutil.copy(SMOKE / "claims.json", folder())
    pages.write(folder())
    text, page = (folder() / "index.html").read_text(), Page((folder() / "index.html").read_text())
    said = {id: finding(records.load(id, "smoke")) for id in IDS}
    assert all(page.says(one) for one in said.values())
    pictures = {one["src"]: one["alt"] for tag, one in page.tags if tag == "img"}
    assert list(pictures) == ["tab01_dataset_stats.png", "tab03_ablation.png", "fig03_sample_efficiency.png"]
    assert all(said[src[:-4]] in alt for src, alt in pictures.items())
    assert page.says("On the paper's own numbers 32 ✓ supported 7 ✗ not supported 22 ? not decidable")
    assert 'id="findings"' not in text  # they are of other profiles
    (root / "README.md").touch()
    pages.write(folder())
    assert "../../README.md" in Page((folder() / "index.html").read_text()).links


def test_the_index_of_laptop_opens_with_the_findings_of_the_readme(monkeypatch, tmp_path):
    monkeypatch.setattr(pages, "five", lambda folder: [f"**One of {folder.name}.** With `code`."])
    assert pages._five(tmp_path / "laptop") == [f"<strong>One of {tmp_path.name}.</strong> With <code>code</code>."]


def ablation(id="tab03_ablation", title="Ablation"):
    there = {"id": "tab03", "dataset": "longmemeval", "encoder": "contriever"}
    value = {"measured": 45.04, "std": 0.8, "low": 41.0, "high": 50.0, "n_queries": 308, "seeds": 3}
    better = {"compared_with": "rmm", "difference": 14.0, "difference_low": 10.0, "difference_high": 18.0}
    rows = [
        records.row("locomo", "minilm", "rmm", "recall@5", against=there, rounds=4, **value),
        records.row("locomo", "minilm", "ear", "recall@5", against=there, rounds=4, sees_gold=True, **value, **better),
        records.row("locomo", "minilm", "ear", "hitrate@5", rounds=4, measured=1.0),
    ]
    source = {"dataset": "d", "encoder": "e", "packages": {"earlib": __version__}, "commit": None}
    return records.record(id, title, "smoke", {"seeds": 3}, source, rows)


def test_measured_stands_beside_reported_below_whatever_title(root):
    records.save(ablation(title="<script>alert(1)</script> & more"))
    (folder() / "tab03_ablation.ipynb").unlink()  # a page of the record alone
    pages.write(folder())
    page = Page((folder() / "tab03_ablation.html").read_text())
    text = page.text()
    assert "script" not in [tag for tag, _ in page.tags] and "<script>alert(1)</script> & more" in text
    assert "EAR Recall@5 (%) 45.0 ± 0.8 [41.0, 50.0] * 80.28 ⇈ same direction" in " ".join(text.split("\xa0"))
    assert "MiniLM for Contriever" in text and records.SEES_GOLD in text
    source = ablation()["provenance"]
    assert source["dataset"] in text and source["packages"]["earlib"] in text


def test_rows_that_differ_in_a_further_key_say_so():
    record = ablation()
    record["rows"] = [records.Row.model_validate(row).model_dump() for row in record["rows"]]
    record["rows"][1]["rounds"] = 8
    names = re.findall(r'<th.*?scope="row".*?>(.*?)</th>', pages._table(record))
    assert names[:6] == ["RL baseline", "Exploration rounds 4", "Recall@5 (%)", "EAR", "Exploration rounds 8", names[2]]


def test_a_table_has_a_caption_scopes_and_on_a_small_screen_its_columns_names():
    shown = pages._decorated(tables.show(ablation(), columns=("metric",)).data)
    page = Page(shown)
    cells = [attributes for tag, attributes in page.tags if tag == "td" and "data-label" in attributes]
    assert cells[0] == {"data-label": "Recall@5 (%), measured", "class": "number"}
    assert {attributes["scope"] for tag, attributes in page.tags if tag == "th"} == {"col", "row"}
    assert shown.index("<table") < shown.index("<caption>") < shown.index("<thead>") and "scroll cards" in shown
    assert "LoCoMo, MiniLM" in shown[shown.index("<caption>") : shown.index("</caption>")]


def test_every_recorded_verdict_has_its_colour_sign_and_meaning():
    files = paths.reference().glob("*/*.json")
    held = {row["verdict"] for file in files for row in json.loads(file.read_text())["rows"]}
    assert held <= set(pages.PARTS.badges) == set(paper.verdict_meanings())
    assert "plain" in pages.PARTS.badge("<b>") and "&lt;b&gt;" in pages.PARTS.badge("<b>")
    for verdict in pages.PARTS.badges:
        assert verdict in pages.PARTS.badge(verdict) and f"{verdict}<" in pages._decorated(f"<td>{verdict}</td>")


@pytest.mark.parametrize("scheme", [0, 1])  # light, dark
def test_verdicts_can_be_read_on_their_ground(scheme):
    css = pages.TEMPLATES.loader.get_source(pages.TEMPLATES, "style.css")[0]
    schemes = css.split("@media (prefers-color-scheme: dark)")
    colours = [dict(re.findall(r"--([\w-]+): #(\w+)", part)) for part in schemes]
    colour = {**colours[0], **(colours[1] if scheme else {})}

    def light(name):
        digits = colour[name] if len(colour[name]) == 6 else "".join(digit * 2 for digit in colour[name])
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    pairs = [(kind, f"{kind}-ground") for kind in ("good", "near", "bad", "open")]
    pairs += [("ink", ground) for ground in ("ground", "card", "plain-ground")]
    pairs += [("soft", "ground"), ("soft", "card"), ("link", "card")]
    pairs += [(one, "tint") for one in ("comment", "keyword", "string", "number")]
    for ink, ground in pairs:
        darker, lighter = sorted((light(ink), light(ground)))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (ink, ground)  # WCAG 2, level AA


# -- formulas


def formulas(source):
    """Formulas of a Markdown cell, found apart from nbconvert's rules."""
    bare = re.sub(r"`[^`]*`", "", source).replace(r"\$", "")
    return re.findall(r"\$\$.+?\$\$|\$[^$]+\$|\\begin\{\w+\*?\}.+?\\end", bare, re.DOTALL)


@pytest.mark.parametrize("name", notebooks.sources())
def test_every_formula_of_the_notebooks_is_set(name):
    for cell in nbformat.read(notebooks.sources()[name], as_version=4).cells:
        if cell.cell_type == "markdown":
            text = pages.markdown(cell.source)
            assert "unset" not in text and "$" not in Page(text).text(), cell.source
            assert text.count("<math") == len(formulas(cell.source)), cell.source
            for math in re.findall(r"<math.*?</math>", text, re.DOTALL):
                page = Page(math)
                assert {tag for tag, _ in page.tags} <= MATHML
                assert page.text() and "\\" not in page.text()


@given(st.text(), st.booleans())
def test_whatever_stands_for_a_formula_is_escaped(body, displaystyle):
    text = pages._Renderer().inline_math(body, displaystyle)
    assert {tag for tag, _ in Page(text).tags} <= MATHML | {"code"}


def test_a_formula_that_cannot_be_set_stays_latex():
    assert pages.markdown(r"$\frac{1}{2}$").count("<mfrac>") == 1
    assert r">\nonsense{x &lt; 1}</code>" in pages.markdown(r"$\nonsense{x < 1}$")


# -- results that are not whole


def test_half_the_notebooks_missing(root, capsys):
    for id in IDS[1:]:
        (folder() / f"{id}.ipynb").unlink()
    (folder() / f"{IDS[2]}.json").unlink()
    assert pages.main(["--profile", "smoke"]) is None
    out, index = capsys.readouterr().out, Page((folder() / "index.html").read_text())
    collapsed = '<details class="missing">\n<summary>Not made yet: 1 result</summary>'
    assert collapsed in (folder() / "index.html").read_text() and index.says(f"make {IDS[2]} PROFILE=smoke")
    assert f"missing: {IDS[2]}; make it with `make {IDS[2]} PROFILE=smoke`\n" in out
    assert "2 pages; results missing: 1" in out
    told = "There is no file `tab03_ablation.ipynb`; run `make tab03_ablation PROFILE=smoke`"
    assert f"tab03_ablation: {told}\n" in out and index.says(told)  # its record is shown all the same
    page = Page((folder() / "tab03_ablation.html").read_text())
    assert page.says(told) and page.says("43 questions, 2 seeds")
    assert "tab03_ablation.png" in page.loads and page.headings[0] == 1
    assert IDS[2] not in [entry.id for entry in pages.read(folder())]


def test_without_results_the_next_step_is_named(root):
    shutil.rmtree(folder())
    with pytest.raises(SystemExit, match="holds no results yet; make them with `make reproduce PROFILE=smoke`"):
        pages.main(["--profile", "smoke"])
    with pytest.raises(SystemExit, match="unknown profile 'smok', did you mean 'smoke'"):
        pages.main(["--profile", "smok"])


@pytest.mark.parametrize("edit", [
    lambda notebook: notebook.cells[0].update(source="# Table 3: better"),
    lambda notebook: notebook.cells.pop(1),
    lambda notebook: notebook.cells.append(notebook.cells.pop(1)),
])  # fmt: skip
def test_a_notebook_that_is_not_its_source_run(root, edit):
    assert remarks("tab03_ablation") == ""
    change("tab03_ablation", edit)
    told = "is not its source run, or was edited by hand; run `make tab03_ablation PROFILE=smoke`"
    assert told in remarks("tab03_ablation") and remarks(IDS[0]) == remarks(IDS[2]) == ""


def test_a_missing_source_or_record_is_told(root):
    (root / "notebooks" / "tab03_ablation.ipynb").unlink()
    (folder() / "tab03_ablation.json").unlink()
    assert "is not its source run" in remarks("tab03_ablation")
    assert "There is no file `tab03_ablation.json`; run" in remarks("tab03_ablation")


@pytest.mark.parametrize("file", [f"{IDS[1]}.ipynb", f"{IDS[1]}.json"])
@pytest.mark.parametrize("content", ['{"cells": [', "[]", "{}", '{"cells": 3, "nbformat": 4, "nbformat_minor": 5}'])
def test_a_file_that_cannot_be_read_is_named_and_the_rest_goes_on(root, file, content):
    (folder() / file).write_text(content)
    pages.write(folder())
    (said,) = remarks(IDS[1]).splitlines()
    assert f"`{file}` cannot be read" in said and remarks(IDS[0]) == remarks(IDS[2]) == ""
    assert all(Page((folder() / f"{name}.html").read_text()).says(said) for name in ("index", IDS[1]))


def test_a_record_of_another_version_or_profile(root):
    change_record("tab03_ablation", lambda record: record.update(profile="laptop"))
    assert "The record is of profile laptop, not smoke; run `make tab03_ablation" in remarks("tab03_ablation")
    change_record("tab03_ablation", lambda record: record["provenance"]["packages"].update(earlib="0.0.1"))
    assert f"The record is of version 0.0.1, not {__version__}; run" in remarks("tab03_ablation")


def test_own_runs_have_a_section_of_their_own(root):
    shutil.copy(folder() / f"{IDS[2]}.ipynb", folder() / f"{OWN}.ipynb")
    change_record(IDS[2], lambda record: record.update(id=OWN) or record["parameters"].update(seeds=1), to=OWN)
    for name in (OWN, f"{OWN}_slates", f"{IDS[2]}_more"):
        shutil.copy(folder() / f"{IDS[2]}.png", folder() / f"{name}.png")
    assert remarks(OWN) == ""
    entries = pages.read(folder())
    assert [entry.id for entry in entries] == [*IDS, OWN]
    assert entries[-1].pictures == [f"{OWN}.png", f"{OWN}_slates.png"]
    assert entries[-2].pictures == [f"{IDS[2]}.png", f"{IDS[2]}_more.png"]
    pages.write(folder())
    text = Page((folder() / "index.html").read_text()).text()
    assert text.index(pages.OWN) > text.index("Figures") and "sample efficiency, with seeds 1" in text
    assert pages.missing(folder()) == []


def test_a_page_whose_result_is_gone_goes_and_other_files_stay(root):
    pages.write(folder())
    (folder() / "notes.html").write_text("<p>mine")
    for kind in ("ipynb", "json", "png"):
        (folder() / f"{IDS[2]}.{kind}").unlink()
    pages.write(folder())
    assert {file.stem for file in folder().glob("*.html")} == {"index", "notes", *IDS[:2]}
