"""The report: `results/<profile>/index.html` and a page a result, for any browser, without a network.

Pages are drawn from the records, figures and executed notebooks of that folder, and rewritten each time. What is
missing, broken or not of its source is reported on the page and printed.
"""

import argparse
import html
import json
import re
import sys
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
    """A result of a folder; `record` and `notebook` are None where missing or unreadable, `page` where both are."""

    id: str
    heading: str
    section: str
    page: str | None
    record: dict | None
    notebook: nbformat.NotebookNode | None
    pictures: list[str]  # file names
    remarks: list[str]  # shown first
    finding: str
    alt: str  # text of its figures


# -- results -----------------------------------------------------------------------------------------------------------


def read(folder):
    """The entries of a results folder, whose name is the profile: tables, figures, the rest, and own runs last."""
    return [_entry(folder, id) for id in readme.in_order(_made(folder))]


def missing(folder):
    """Results that the profile makes and its folder lacks, in the order of the report."""
    return readme.in_order(notebooks.sources().keys() - _made(folder))


def _made(folder):
    return {file.stem for kind in ("ipynb", "json") for file in folder.glob(f"*.{kind}")}


def _entry(folder, id):
    name, *own = id.split("--")
    remarks, source = [], notebooks.sources().get(name)
    source = source and nbformat.read(source, as_version=4)
    notebook = _read(f"{id}.ipynb", lambda: _read_notebook(folder / f"{id}.ipynb"), remarks)
    record = _read(f"{id}.json", lambda: records.load(id, folder.name, folder.parent), remarks)
    if notebook and not _is_run_of(notebook, source):
        remarks.append(f"`{id}.ipynb` is not its source run, or was edited by hand")
    remarks += [f"The record is {other}" for other in records.departures(record, folder.name)] if record else []
    again = f"run `make {name} PROFILE={folder.name}`" + (" with the same ARGS" if own else "")
    title = record["title"] if record else id
    if shown := notebook or source:
        title = shown.cells[0].source.partition("\n")[0].removeprefix("# ")
    title += (", with " + ", ".join(part.replace("-", " ", 1) for part in own)) if own else ""
    found = finding(record) if record else ""
    pictures = [file.name for file in [*folder.glob(f"{id}.png"), *folder.glob(f"{id}_*.png")]]
    return Entry(
        id=id,
        heading=title,
        section=OWN if own else SECTIONS.get(id[:3], OTHERS),
        page=f"{id}.html" if notebook or record else None,
        record=record,
        notebook=notebook,
        pictures=sorted(pictures, key=lambda name: (len(name), name)),
        remarks=[f"{remark}; {again}" for remark in remarks],
        finding=found,
        alt=f"Figure of {title}: {found or 'its values stand in the tables'}",
    )


def _read(name, read, remarks):
    """The result of `read`, None with a remark where it fails."""
    try:
        return read()
    except FileNotFoundError:
        remarks.append(f"There is no file `{name}`")
    except Exception as error:  # cut short, not JSON, JSON of something else: whatever makes it unreadable
        remarks.append(f"`{name}` cannot be read ({type(error).__name__})")


def _read_notebook(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def _is_run_of(notebook, source):
    written = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    cells = [[(cell.cell_type, cell.source) for cell in every] for every in (written, source.cells if source else [])]
    return cells[0] == cells[1]


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
    heads, lines = _heads(table), table.select("tbody tr")
    for cell in table("th"):
        cell["scope"] = "col" if cell.find_parent("thead") else "row"
    for line in lines:
        for cell, head in zip(line("td"), heads, strict=False):
            cell["data-label"] = head
            _mark(cell)
    told = table.find_next_sibling()
    if told and told.name == "p" and "caption" in told.get("class", ()):
        caption = page.new_tag("caption")
        caption.append(told.extract())
        told.name = "span"
        table.insert(0, caption)
    many = len(heads) + max((len(line("th")) for line in lines), default=0) > 3  # on a small screen, a card a row
    look = {"class": "scroll cards" if many else "scroll", "role": "region", "aria-label": "table", "tabindex": "0"}
    table.wrap(page.new_tag("div", attrs=look))


def _mark(cell):
    """Mark what is absent, numbers, and verdicts: one on a value, one on a difference."""
    shown = cell.get_text()
    verdicts = shown.split("; difference ")
    if shown in ("", "–"):
        cell["class"] = "absent"
    elif set(verdicts) <= set(paper.verdict_meanings()):
        badges = "<br>difference ".join(map(PARTS.badge, verdicts))
        cell.clear()
        cell.append(BeautifulSoup(badges, "html.parser"))
    elif re.fullmatch(r"[-+±\d.,\[\] *]+", shown):
        cell["class"] = "number"


def _heads(table):
    """Names of the columns of a table, those above the same column joined; of a column without a name ""."""
    above = [[cell.get_text() for cell in line("th") for _ in range(int(cell.get("colspan", 1)))]
             for line in table.select("thead tr")]  # fmt: skip
    columns = max((len(line("td")) for line in table("tr")), default=0)
    return [", ".join(filter(None, column)) for column in zip(*(names[-columns:] for names in above), strict=False)]


def _body(entry):
    """The executed notebook as HTML, its tables decorated and its pictures described."""
    notebook = nbformat.from_dict(entry.notebook)
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        data = output.get("data", {})
        if "text/html" in data:
            data["text/html"] = _decorated(data["text/html"])
        if "image/png" in data:
            output.metadata.setdefault("image/png", {})["alt"] = entry.alt
    return Markup(EXPORTER.from_notebook_node(notebook)[0])


def _table(record):
    """Table of all rows of a record as HTML; what their names have in common stands in the caption."""
    further = dict.fromkeys(key for row in record["rows"] for key in records.further(row))
    names = (*records.KEYS[:3], *further, "metric")
    return Markup(_decorated(tables.show(record, names, columns=(), named=True).data))


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
TEMPLATES.filters |= {"ticked": _ticked, "flat": _flat, "tally": records.tally, "table": _table, "body": _body}
TEMPLATES.globals |= {"meanings": paper.verdict_meanings()}
EXPORTER = HTMLExporter(template_name="basic", filters={"markdown2html": markdown})
EXPORTER.exclude_input_prompt = EXPORTER.exclude_output_prompt = True
PARTS = TEMPLATES.get_template("parts.html.j2").module


def write(folder):
    """Write the index and the pages of a results folder, whose name is the profile; other generated pages are removed.

    Returns
    -------
    entries : list of Entry

    Raises
    ------
    FileNotFoundError
        If the folder holds no result; the message says how to make them.
    """
    title, entries = profiles.load_profile(folder.name).title, read(folder)
    if not entries:
        raise FileNotFoundError(f"{folder} holds no results yet; make them with `make reproduce PROFILE={folder.name}`")
    links = {"README": "README.md", "The paper, and how to cite it": "CITATION.cff", "Source": "earlib"}
    above = {name: f"../../{file}" for name, file in links.items() if (folder.parent.parent / file).exists()}
    told = {"profile": folder.name, "title": title, "entries": entries, "missing": missing(folder), "above": above}
    pages, paged = {}, [entry for entry in entries if entry.page]
    for before, entry, after in zip([None, *paged], paged, [*paged[1:], None], strict=False):
        files = [f"{entry.id}.{kind}" for kind in ("ipynb", "json") if (folder / f"{entry.id}.{kind}").exists()]
        along = {"entry": entry, "before": before, "after": after, "files": files + entry.pictures}
        pages[entry.page] = TEMPLATES.get_template("page.html.j2").render(told, **along)
    head = {"found": _five(folder), "verdicts": _verdicts(entries)}
    pages["index.html"] = TEMPLATES.get_template("index.html.j2").render(told, **head)
    for file in folder.glob("*.html"):
        if '<meta name="generator" content="earlib' in file.read_text("utf-8", errors="replace"):
            file.unlink()
    for name, text in pages.items():
        paths.write_atomically(folder / name, text)
    return entries


def _five(folder):
    """The README's findings as HTML, in the profiles of whose records they speak."""
    if folder.name not in (readme.PROFILE, readme.LARGER):
        return []
    return [Markup(markdown(one).removeprefix("<p>").removesuffix("</p>\n")) for one in five(folder.parent)]


def _verdicts(entries):
    """Counts of claims by verdict, for each way to judge them; none without the claims' record."""
    record = next((entry.record for entry in entries if entry.id == "claims"), None)
    lines = claims.tally(record).to_dict("index") if record else {}
    return {said: counts for said, counts in lines.items() if "once" not in said}


def main(arguments=None):
    """`python -m earlib.harness.pages [--profile P]`: write the report of a profile and print its remarks."""
    parser = argparse.ArgumentParser(prog="python -m earlib.harness.pages", description=main.__doc__)
    parser.add_argument("--profile", default="laptop", help="a folder of results (default: laptop)")
    profile = parser.parse_args(arguments).profile
    folder = paths.results() / profile
    try:
        entries = write(folder)
    except (OSError, notebooks.Unusable) as error:
        sys.exit(str(error))
    lacking = missing(folder)
    for id in lacking:
        print(f"missing: {id}; make it with `make {id} PROFILE={profile}`")
    for entry in entries:
        for remark in entry.remarks:
            print(f"{entry.id}: {remark}")
    count = sum(entry.page is not None for entry in entries)
    print(f"{paths.shown(folder / 'index.html')}: {count} pages; results missing: {len(lacking)}")


if __name__ == "__main__":
    main()
