"""The report: `results/<profile>/index.html` and a page a result, for any browser, without a network.

Pages are drawn from the records, figures and executed notebooks of that folder, and rewritten each time. What is
missing, broken or not of its source is reported on the page and printed.
"""

import argparse
import html
import json
import re
import sys
import warnings
from base64 import b64decode
from collections import Counter
from typing import NamedTuple

import nbformat
from bs4 import BeautifulSoup
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from math_core import LatexError, LatexToMathML
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from earlib import claims, paper, paths, records
from earlib.harness import notebooks, profiles, readme, tables
from earlib.harness.findings import finding, five

SECTIONS = {"tab": "Tables", "fig": "Figures"}
OTHERS, OWN = "Beyond the paper's tables and figures", "Runs with other parameters"


class Entry(NamedTuple):
    """A result of a folder; `record` and `notebook` are None where missing or unreadable."""

    id: str
    heading: str
    record: dict | None
    notebook: nbformat.NotebookNode | None
    pictures: list[str]  # file names
    remarks: list[str]  # shown first
    section: str

    @property
    def page(self):
        """File name of its page; None where there is nothing to show."""
        return f"{self.id}.html" if self.notebook or self.record else None

    @property
    def counts(self):
        """Verdicts of its rows with their counts."""
        return _in_order(records.tally(self.record["rows"]))

    @property
    def finding(self):
        """Its result in a sentence; "" without one."""
        return finding(self.record) if self.record else ""

    @property
    def alt(self):
        """Alternative text of its figures."""
        return f"Figure of {self.heading}: {self.finding or 'its values stand in the tables'}"


# -- results -----------------------------------------------------------------------------------------------------------


def read(folder):
    """The entries of a results folder, whose name is the profile: tables, figures, the rest, and own runs last."""
    ids = _made(folder)
    pictures = {id: [] for id in ids}
    for stem in sorted((file.stem for file in folder.glob("*.png")), key=lambda stem: (len(stem), stem)):
        owners = [id for id in ids if stem == id or stem.startswith(f"{id}_")]
        if owners:
            pictures[max(owners, key=len)].append(f"{stem}.png")
    return [_entry(folder, id, pictures[id], "--" in id) for id in ids]


def missing(folder):
    """Results that the profile makes and its folder lacks, in the order of the report."""
    return _sorted(notebooks.sources().keys() - set(_made(folder)))


def _made(folder):
    return _sorted({file.stem for kind in ("ipynb", "json") for file in folder.glob(f"*.{kind}")})


def _sorted(ids):
    def place(id):
        kinds = (not id.startswith(kind) for kind in ("annotated", "tab", "fig"))
        return "--" in id, *kinds, id.startswith("claims"), id

    return sorted(ids, key=place)


def _entry(folder, id, pictures, own):
    again = f"run `make {id.partition('--')[0]} PROFILE={folder.name}`" + (" with the same ARGS" if own else "")
    notebook, record, remarks, broken = None, None, [], []
    try:
        notebook = _read_notebook(folder / f"{id}.ipynb")
        remarks += _notebook_remarks(notebook, id, folder.name, {(folder / name).read_bytes() for name in pictures})
    except FileNotFoundError:
        remarks.append(f"There is no executed notebook `{id}.ipynb`")
    except ValueError as error:
        remarks.append(str(error))
    try:
        record = records.load(id, folder.name, folder.parent)
        _table(record)  # refuses two rows of one name
        remarks += _record_remarks(record, notebook, folder.name)
    except FileNotFoundError:
        remarks.append(f"There is no record `{id}.json`")
    except ValueError as error:
        record = None
        broken.append(f"The record is broken and left out. {str(error).replace(f'{folder}/', '')}")
    remarks = [f"{remark}; {again}" for remark in remarks] + broken
    section = OWN if own else SECTIONS.get(id[:3], OTHERS)
    return Entry(id, _heading(notebook, id, record), record, notebook, pictures, remarks, section)


def _read_notebook(path):
    """The notebook; a ValueError that names the file if it is none."""
    text = path.read_bytes()  # a missing file is another matter than one that is no notebook
    try:
        with warnings.catch_warnings(action="error", category=FutureWarning):  # of ids that it would make up at random
            notebook = nbformat.reads(text.decode(), as_version=4)
            nbformat.validate(notebook)
    except Exception as error:  # cut short, not JSON, JSON of something else: whatever makes it unreadable
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        raise ValueError(f"`{path.name}` is not a notebook ({reason})") from error
    return notebook


def _source(id):
    return paths.notebooks() / f"{id.partition('--')[0]}.ipynb"


def _heading(notebook, id, record):
    """The title that the notebook or its source states, and what distinguishes an own run."""
    try:
        notebook = notebook or _read_notebook(_source(id))
        first = notebook.cells[0].source.partition("\n")[0]
    except (OSError, ValueError, IndexError):
        first = ""
    title = first.removeprefix("# ") if first.startswith("# ") else (record["title"] if record else id)
    own = ", ".join(part.replace("-", " ", 1) for part in id.split("--")[1:])
    return title + (f", with {own}" if own else "")


# -- remarks -----------------------------------------------------------------------------------------------------------


def _notebook_remarks(notebook, id, profile, saved):
    """Where an executed notebook is not its source run with its own parameters, or its figures are not those saved."""
    where = f"`{id}.ipynb`"
    written = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    try:
        if differing := _differing(written, _read_notebook(_source(id)).cells):
            yield f"{where} is not its source run, or was edited by hand: {differing}"
    except FileNotFoundError:
        yield f"{where} has no source `notebooks/{_source(id).name}` any more"
    except ValueError as error:
        yield f"{where} cannot be compared with its source: {error}"
    given = notebook.metadata.get("papermill", {}).get("parameters", {})
    if (given.get("name"), given.get("profile")) != (id, profile):
        yield f"{where} was not run under this name and profile"
    outputs = [output for cell in written for output in cell.get("outputs", [])]
    if not outputs or any(output.output_type == "error" for output in outputs):
        yield f"{where} " + ("stopped at an error" if outputs else "was not executed: it has no outputs")
    for cell in written:
        shown = [output.get("data", {}).get("image/png") for output in cell.get("outputs", [])]
        if not {b64decode(picture) for picture in shown if picture} <= saved:
            yield f"The figure of cell {_named(cell)} is not among the saved ones: its file is gone, or of another run"


def _differing(executed, source):
    """Cells of an executed notebook that are not those of its source; "" if there are none."""
    here, there = ({_named(cell): (cell.cell_type, cell.source) for cell in cells} for cells in (executed, source))
    changed = [id for id, cell in here.items() if cell != there.get(id)]
    told = {"cell": changed, "it lacks": [id for id in there if id not in here]}
    told["another order of"] = ["cells"] * (not any(told.values()) and [*here] != [*there])
    return "; ".join(f"{what} {', '.join(ids)}" for what, ids in told.items() if ids)


def _named(cell):
    return f"`{cell.get('id', 'without id')}`"


def _record_remarks(record, notebook, profile):
    yield from (f"The record is {other}" for other in records.departures(record, profile))
    given = notebook.metadata.get("papermill", {}).get("parameters", {}) if notebook else {}
    other = [key for key, value in record["parameters"].items() if key in given and value != records.plain(given[key])]
    if other:
        yield f"The record is of other parameters than the notebook: {', '.join(other)}"


# -- measured beside reported ------------------------------------------------------------------------------------------


def _table(record):
    """Table of all rows of a record as HTML; what their names have in common stands in the caption."""
    if not record["rows"]:
        return ""
    further = dict.fromkeys(key for row in record["rows"] for key in records.further(row))
    return _decorated(tables.show(record, (*records.KEYS[:3], *further, "metric"), columns=(), named=True).data)


def _in_order(counts):
    """Verdicts with their counts in the order of their meanings, unknown ones last."""
    order = (*paper.verdict_meanings(), *sorted(set(counts) - set(paper.verdict_meanings())))
    return [(verdict, counts[verdict]) for verdict in order if counts[verdict]]


# -- pages -------------------------------------------------------------------------------------------------------------


class _Renderer(IPythonRenderer):
    """nbconvert's Markdown, with formulas as MathML, which needs neither a network nor megabytes of script."""

    # Some browsers set no tilde over several letters, which can still be read.
    latex = LatexToMathML(fancy_error=False, allow_unreliable_rendering=True)

    def inline_math(self, body, displaystyle=False):
        try:
            return self.latex.convert_with_local_state(body, displaystyle=displaystyle)
        except LatexError as error:
            return f'<code class="unset" title="{html.escape(str(error))}">{html.escape(body)}</code>'

    def block_math(self, body):
        return f'<span class="scroll" tabindex="0">{self.inline_math(body, True)}</span>'

    def latex_environment(self, name, body):
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")


def markdown(source):
    """Markdown with LaTeX as HTML with MathML; a formula that cannot be set stays LaTeX, in `<code class="unset">`."""
    return _decorated(MarkdownWithMath(renderer=_Renderer(escape=False, exclude_anchor_links=True)).render(source))


def _decorated(text):
    """HTML without styles of its own, its tables for wide and narrow screens and with verdicts in colour."""
    if "<table" not in text:
        return text
    page = BeautifulSoup(text, "html.parser")
    for style in page("style"):
        style.decompose()
    for table in page("table"):
        _adapt(table, page)
    return str(page)


def _adapt(table, page):
    """Give a table its caption, scopes and a box that scrolls, and each cell its column's name, for small screens."""
    heads = _heads(table)
    for cell in table("th"):
        cell["scope"] = "col" if cell.find_parent("thead") else "row"
    for row in (row for row in table("tr") if not row.find_parent("thead")):
        for cell, head in zip(reversed(row("td")), reversed(heads), strict=False):
            cell["data-label"], shown = head, cell.get_text()
            if shown in ("", "–"):
                cell["class"] = "absent"
            verdicts = shown.split("; difference ")  # one on a value, one on a difference
            if set(verdicts) <= set(paper.verdict_meanings()):
                badges = "<br>difference ".join(map(PARTS.badge, verdicts))
                cell.clear()
                cell.append(BeautifulSoup(badges, "html.parser"))
            elif re.fullmatch(r"[-+±\d.,\[\] *]+", shown):
                cell["class"] = "number"
    told = table.find_next_sibling()
    if told and told.name == "p" and "caption" in told.get("class", ()):
        caption = page.new_tag("caption")
        caption.append(told.extract())
        told.name = "span"
        table.insert(0, caption)
    box = page.new_tag("div", attrs={"class": "scroll", "role": "region", "aria-label": "table", "tabindex": "0"})
    levels = max((len(row("th")) for row in table("tr") if row.td), default=0)
    if levels + len(heads) > 3:
        box["class"] = "scroll cards"  # on a small screen, a card a row
    table.wrap(box)


def _heads(table):
    """Names of the columns of a table, those above the same column joined; of a column without a name ""."""
    lines = []
    for row in table.thead("tr") if table.thead else []:
        lines.append([cell.get_text() for cell in row("th") for _ in range(int(cell.get("colspan", 1)))])
    columns = max((len(row("td")) for row in table("tr")), default=0)
    return [", ".join(filter(None, column)) for column in zip(*(line[-columns:] for line in lines), strict=False)]


def _body(entry):
    """The executed notebook as HTML, its tables decorated and its pictures described; None where there is none."""
    if entry.notebook is None:
        return None
    notebook = nbformat.from_dict(entry.notebook)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:
                data["text/html"] = _decorated(data["text/html"])
            if "image/png" in data:
                output.metadata.setdefault("image/png", {})["alt"] = entry.alt
    body, _ = EXPORTER.from_notebook_node(notebook)
    if unset := body.count('<code class="unset"'):
        entry.remarks.append(f"Formulas that cannot be set and stand as LaTeX: {unset}")
    return Markup(body)


def _flat(values, before=""):
    """Nested values as pairs: "packages, torch" and "2.13.0"."""
    if isinstance(values, dict):
        return [pair for key, value in values.items() for pair in _flat(value, f"{before}, {key}".removeprefix(", "))]
    return [(before, values if isinstance(values, str) else json.dumps(values, ensure_ascii=False))]


def _ticked(text):
    """Text as HTML, `code` in backticks."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


LOADER = PackageLoader("earlib.harness")
TEMPLATES = Environment(loader=LOADER, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
TEMPLATES.filters |= {"ticked": _ticked, "flat": _flat}
TEMPLATES.globals |= {"meanings": paper.verdict_meanings()}
EXPORTER = HTMLExporter(template_name="basic", filters={"markdown2html": markdown})
EXPORTER.exclude_input_prompt = EXPORTER.exclude_output_prompt = True
PARTS = TEMPLATES.get_template("parts.html.j2").module


def write(folder):
    """Write the index and the pages of a results folder, whose name is the profile; other generated pages are removed.

    Returns
    -------
    index : Path
    entries : list of Entry
        With the remarks that only the making of a page brings to light.

    Raises
    ------
    FileNotFoundError
        If the folder holds no result; the message says how to make them.
    """
    entries = read(folder)
    if not entries:
        raise FileNotFoundError(f"{folder} holds no results yet; make them with `make reproduce PROFILE={folder.name}`")
    try:
        title = profiles.load_profile(folder.name).title
    except notebooks.Unusable:  # results of a profile that is gone can be read all the same
        title = folder.name
    pages, page, paged = {}, TEMPLATES.get_template("page.html.j2"), [entry for entry in entries if entry.page]
    for before, entry, after in zip([None, *paged], paged, [*paged[1:], None], strict=False):
        files = [f"{entry.id}.{kind}" for kind in ("ipynb", "json") if (folder / f"{entry.id}.{kind}").exists()]
        shown = {"entry": entry, "before": before, "after": after, "files": files + entry.pictures}
        shown |= {"body": _body(entry), "table": Markup(_table(entry.record) if entry.record else "")}
        pages[entry.page] = page.render(shown, profile=folder.name, above=_above(folder))
    shown = {"profile": folder.name, "title": title, "entries": entries, "missing": missing(folder)}
    shown |= {"found": _five(folder), "verdicts": _verdicts(entries), "above": _above(folder)}
    pages["index.html"] = TEMPLATES.get_template("index.html.j2").render(shown)
    for file in folder.glob("*.html"):
        if '<meta name="generator" content="earlib' in file.read_text("utf-8", errors="replace"):
            file.unlink()
    for name, text in pages.items():
        paths.write_atomically(folder / name, text)
    return folder / "index.html", entries


def _five(folder):
    """The README's findings as HTML, in the profiles of whose records they speak."""
    if folder.name not in (readme.PROFILE, readme.LARGER):
        return []
    return [Markup(markdown(one).removeprefix("<p>").removesuffix("</p>\n")) for one in five(folder.parent)]


def _verdicts(entries):
    """Claims by verdict: pairs of how they were judged and their counts; none without the claims' record."""
    record = next((entry.record for entry in entries if entry.id == "claims"), None)
    lines = claims.tally(record).to_dict("index") if record else {}
    return [(said, _in_order(Counter(counts))) for said, counts in lines.items() if "once" not in said]


def _above(folder):
    """Links to what lies beside the results in a checkout."""
    links = {"README": "README.md", "The paper, and how to cite it": "CITATION.cff", "Source": "earlib"}
    return {name: f"../../{file}" for name, file in links.items() if (folder.parent.parent / file).exists()}


def main(arguments=None):
    """`python -m earlib.harness.pages [--profile P]`: write the report of a profile and print its remarks."""
    parser = argparse.ArgumentParser(prog="python -m earlib.harness.pages", description=main.__doc__)
    parser.add_argument("--profile", default="laptop", help="a folder of results (default: laptop)")
    profile = parser.parse_args(arguments).profile
    folder = paths.results() / profile
    try:
        if not folder.is_dir():
            profiles.load_profile(profile)  # a name that is unknown altogether is another mistake
        index, entries = write(folder)
    except (OSError, notebooks.Unusable) as error:
        sys.exit(str(error))
    lacking = missing(folder)
    for id in lacking:
        print(f"missing: {id}; make it with `make {id.partition('--')[0]} PROFILE={profile}`")
    for entry in entries:
        for remark in entry.remarks:
            print(f"{entry.id}: {remark}")
    count = sum(entry.page is not None for entry in entries)
    print(f"{paths.shown(index)}: {count} pages; results missing: {len(lacking)}")


if __name__ == "__main__":
    main()
