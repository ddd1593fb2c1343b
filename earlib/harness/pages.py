"""The report: `results/<profile>/index.html` and a page a notebook, for any browser, without a network.

Everything is drawn from what lies in that folder: the records, the figures beside them and the executed notebooks. The
same results give the same bytes. What is missing, broken or not of its source is said on the page and printed.
"""

import argparse
import ast
import difflib
import html
import json
import re
import sys
import warnings
from base64 import b64decode
from collections import Counter
from functools import partial
from typing import NamedTuple

import nbformat
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from math_core import LatexError, LatexToMathML
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from earlib import __version__, paper, paths, records
from earlib.harness import notebooks, profiles, tables

# Colour and sign (never the colour alone) of a verdict; of the last two there is nothing to judge.
BADGES = {
    "agrees": ("good", "✓"),
    "nearly": ("near", "≈"),
    "differs": ("bad", "✗"),
    "same direction": ("good", "⇈"),
    "other direction": ("bad", "⇅"),
    "undecided": ("open", "?"),
    "another setting": ("plain", "◇"),
    "supported": ("good", "✓"),
    "not supported": ("bad", "✗"),
    "not decidable": ("open", "?"),
    "not in the paper": ("plain", "+"),
    "not run": ("plain", "–"),
}
UNJUDGED = ("not in the paper", "not run")
SECTIONS = {"tab": "Tables", "fig": "Figures", "": "Beyond the paper's tables and figures"}
OWN = "Runs with other parameters"
MARK = '<meta name="generator" content="earlib.harness.pages">'  # tells a page that this module wrote, and may remove


class Entry(NamedTuple):
    """What a results folder holds under one name; `record` and `notebook` are None where missing or unreadable."""

    id: str
    heading: str
    record: dict | None
    notebook: nbformat.NotebookNode | None
    table: dict | None  # what `_shown` returns
    pictures: list[str]  # file names
    remarks: list[str]  # what a reader must know first
    own: bool  # run with parameters of the reader's own

    @property
    def page(self):
        """File name of its page, None without an executed notebook."""
        return f"{self.id}.html" if self.notebook else None


# -- what the folder holds ---------------------------------------------------------------------------------------------


def read(folder):
    """The entries of a results folder, tables first, then figures, then the rest; own runs last.

    Parameters
    ----------
    folder : Path
        Its name is the profile.

    Returns
    -------
    list of Entry
    """
    ids = {file.stem for kind in ("ipynb", "json") for file in folder.glob(f"*.{kind}")}
    planned = profiles.own_names(folder.name)
    ids = sorted(ids, key=partial(_place, planned=planned))
    figures = {id: [] for id in ids}
    stems = {file.stem for file in folder.glob("*.png")}
    for stem in sorted(stems, key=lambda stem: (len(stem), stem)):
        owners = [id for id in ids if stem == id or stem.startswith(f"{id}_")]
        if owners:
            figures[max(owners, key=len)].append(stem)
    return [_entry(folder, id, figures[id], _is_own(id, planned)) for id in ids]


def _place(id, planned=()):
    return _is_own(id, planned), not id.startswith("tab"), not id.startswith("fig"), id.startswith("claims"), id


def _is_own(id, planned):
    """Whether a result is of parameters of the reader's own, which the profile does not name."""
    return "--" in id and id not in planned


def _entry(folder, id, figures, own):
    remarks, again = [], _again(id, folder.name, own)
    pictures = [f"{stem}.png" for stem in figures if (folder / f"{stem}.png").exists()]
    notebook = record = table = None
    try:
        notebook = _read_notebook(folder / f"{id}.ipynb")
        remarks += [f"{remark}; {again}" for remark in _notebook_remarks(notebook, id, folder.name)]
    except FileNotFoundError:
        remarks.append(f"There is no executed notebook `{id}.ipynb`; {again}")
    except ValueError as error:
        remarks.append(f"{error}; {again}")
    try:
        record = records.load(id, folder.name, folder.parent)
        record["rows"] = [records.Row.model_validate(row).model_dump() for row in record["rows"]]
        table = _shown(record, bool(pictures))
        remarks += [f"{remark}; {again}" for remark in _record_remarks(record, notebook, folder.name)]
    except FileNotFoundError:
        remarks.append(f"There is no record `{id}.json`; {again}")
    except ValueError as error:
        record = table = None
        remarks.append(f"The record is broken and left out. {str(error).replace(f'{folder}/', '')}")
    remarks += [f"{remark}; {again}" for remark in _figure_remarks(notebook, folder, pictures)]
    return Entry(id, _heading(notebook, id, record), record, notebook, table, pictures, remarks, own)


def _again(id, profile, own):
    return f"run `make {id.partition('--')[0]} PROFILE={profile}`" + (" with the same ARGS" if own else "")


def _read_notebook(path):
    """The notebook; a ValueError that names the file if it is none."""
    text = path.read_bytes()  # a missing file is another matter than one that is no notebook
    try:
        with warnings.catch_warnings(action="error", category=FutureWarning):  # of ids that it would make up at random
            notebook = nbformat.reads(text.decode(), as_version=4)
            nbformat.validate(notebook)
    except Exception as error:  # cut short, not JSON, JSON of something else: whatever makes it unreadable
        raise ValueError(f"`{path.name}` is not a notebook ({_first_line(error)})") from error
    return notebook


def _first_line(error):
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0][:200]


def _heading(notebook, id, record):
    """The title that the notebook gives itself, and what sets an own run apart."""
    own = ", ".join(part.replace("-", " ", 1) for part in id.split("--")[1:])
    if notebook is None:
        try:
            notebook = _read_notebook(_source(id))
        except (OSError, ValueError):
            notebook = None
    first = notebook.cells[0].source.partition("\n")[0] if notebook and notebook.cells else ""
    title = first.removeprefix("# ") if first.startswith("# ") else (record["title"] if record else id)
    return title + (f", with {own}" if own else "")


def _source(id):
    return paths.notebooks() / f"{id.partition('--')[0]}.ipynb"


# -- remarks -----------------------------------------------------------------------------------------------------------


def _notebook_remarks(notebook, id, profile):
    """Where an executed notebook is not its source run with the parameters that it names."""
    where = f"`{id}.ipynb`"
    injected = [cell for cell in notebook.cells if "injected-parameters" in cell.metadata.get("tags", [])]
    written = [cell for cell in notebook.cells if cell not in injected]
    try:
        differing = _differing(written, _read_notebook(_source(id)).cells)
        if differing:
            yield f"{where} is not its source run, or was edited by hand: {differing}"
    except FileNotFoundError:
        yield f"{where} has no source `notebooks/{_source(id).name}` any more"
    except ValueError as error:
        yield f"{where} cannot be compared with its source: {error}"
    given = notebook.metadata.get("papermill", {}).get("parameters", {})
    if (given.get("name"), given.get("profile")) != (id, profile) or [_assigned(cell) for cell in injected] != [given]:
        yield f"{where} was not run under this name and profile, or its parameters were edited by hand"
    outputs = [output for cell in written for output in cell.get("outputs", [])]
    if not outputs or any(output.output_type == "error" for output in outputs):
        yield f"{where} " + ("stopped at an error" if outputs else "was not executed: it has no outputs")


def _differing(executed, source):
    """Which cells of an executed notebook are not those of its source; "" if all are."""
    here, there = ([(cell.cell_type, cell.source) for cell in cells] for cells in (executed, source))
    steps = difflib.SequenceMatcher(a=there, b=here, autojunk=False).get_opcodes()
    changed = [_named(executed[i]) for kind, _, _, start, end in steps if kind != "equal" for i in range(start, end)]
    lacking = [_named(source[i]) for kind, start, end, _, _ in steps if kind == "delete" for i in range(start, end)]
    told = [f"{what} {', '.join(cells)}" for what, cells in (("cell", changed), ("it lacks", lacking)) if cells]
    return "; ".join(told)


def _named(cell):
    return f"`{cell.get('id', 'without id')}`"


def _assigned(cell):
    """What an injected cell sets, None if it is no list of plain values."""
    try:
        return {line.targets[0].id: ast.literal_eval(line.value) for line in ast.parse(cell.source).body}
    except (SyntaxError, ValueError, AttributeError, TypeError):
        return None


def _record_remarks(record, notebook, profile):
    version = record["provenance"].get("packages", {}).get("earlib")
    if record["profile"] != profile:
        yield f"The record is of the profile {record['profile']}, not {profile}"
    if version != __version__:
        yield f"The record is of earlib {version}, this is {__version__}"
    given = notebook.metadata.get("papermill", {}).get("parameters", {}) if notebook else {}
    other = [key for key, value in record["parameters"].items() if key in given and value != _rounded(given[key])]
    if other:
        yield f"The record is of other parameters than the notebook: {', '.join(other)}"


def _rounded(value):
    """As a record holds it: floats at six significant digits."""
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _figure_remarks(notebook, folder, pictures):
    """Which figures are not those that the notebook shows."""
    saved = {(folder / name).read_bytes() for name in pictures}
    for cell in notebook.cells if notebook else ():
        shown = [output.get("data", {}).get("image/png") for output in cell.get("outputs", [])]
        if not {b64decode(picture) for picture in shown if picture} <= saved:
            yield f"The figure of cell {_named(cell)} is not among the saved ones: its file is gone, or of another run"


def missing(folder):
    """What the profile makes and has no executed result in its folder, in the order of the report."""
    planned = profiles.own_names(folder.name)
    ids = sorted(planned, key=partial(_place, planned=planned))
    return [id for id in ids if not (folder / f"{id}.ipynb").exists()]


# -- measured beside reported ------------------------------------------------------------------------------------------


def _shown(record, pictured):
    """The rows for the index: those with something to judge and the headline; without a picture, the first ones.

    Returns
    -------
    dict
        lines (what, measured, paper, verdict); head, what the names of all lines have in common; caption; counts of
        the verdicts of all rows, in the order of `BADGES`.
    """
    counts = Counter(row["verdict"] or "without a verdict" for row in record["rows"])
    rows = [row for row in record["rows"] if row["headline"] or row["verdict"] not in (*UNJUDGED, None)]
    if not rows and not pictured:
        rows = [row for row in record["rows"] if row["measured"] is not None][:6] or record["rows"][:6]
    if not rows:
        return {"head": "", "lines": [], "caption": "", "counts": _in_order(counts)}
    part = {**record, "rows": rows}
    further = [key for row in rows for key in row if key not in (*records.VALUES, "metric")]
    keys = list(dict.fromkeys(("variant", *further, "metric")))  # the metric comes last in a name
    varying = [key for key in keys if len({str(row.get(key)) for row in rows}) > 1] or ["metric"]
    index = [key for key in keys if key in (*varying, "variant", "metric")]
    shown = tables.table(part, index, columns=())
    names = [dict(zip(index, line, strict=True)) for line in shown.index]
    lines = [
        (_words(name, varying), _unbroken(measured), printed, row["verdict"])
        for name, (measured, printed, _), row in zip(names, shown.to_numpy(), rows, strict=True)
    ]
    head = _words(names[0], [key for key in index if key not in varying])
    return {"head": head, "lines": lines, "caption": tables.caption(part), "counts": _in_order(counts)}


def _in_order(counts):
    """Verdicts with their counts, in the order of `BADGES`; a word that is not there comes last."""
    order = (*BADGES, *sorted(set(counts) - set(BADGES)))
    return [(verdict, counts[verdict]) for verdict in order if counts[verdict]]


def _unbroken(measured):
    """A value that breaks into lines only before its interval."""
    return re.sub(r" (?!\[)", "\N{NO-BREAK SPACE}", measured)


def _words(name, keys):
    """What names a row, for people: "EAR, Exploration rounds 4, Recall@5 (%)"."""
    told = {key: name[key] for key in keys if name[key]}
    heads = {key: "" if key in records.KEYS else f"{paper.label(key)} " for key in told}
    return ", ".join(heads[key] + text.removeprefix(heads[key]) for key, text in told.items())  # numbers have theirs


# -- pages -------------------------------------------------------------------------------------------------------------


def badge(verdict):
    """A verdict as HTML: colour, sign and words."""
    kind, sign = BADGES.get(verdict, ("plain", ""))
    meaning = paper.verdict_meanings().get(verdict, "")
    about = Markup(' title="{}"').format(meaning) if meaning else ""
    return Markup('<span class="verdict {}"{}><span aria-hidden="true">{}</span>&nbsp;{}</span>').format(
        kind, about, sign, verdict
    )


class _Renderer(IPythonRenderer):
    """nbconvert's Markdown, with formulas as MathML, which browsers set themselves.

    nbconvert leaves LaTeX to MathJax, which has to come over a network or with every page as megabytes of script.
    """

    # Tildes over several letters are left as one by some browsers, which can still be read.
    latex = LatexToMathML(fancy_error=False, allow_unreliable_rendering=True)

    def _formula(self, body, displaystyle):
        try:
            return self.latex.convert_with_local_state(body, displaystyle=displaystyle)
        except LatexError as error:
            return f'<code class="unset" title="{html.escape(str(error))}">{html.escape(body)}</code>'

    def inline_math(self, body):
        return self._formula(body, False)

    def block_math(self, body):
        return f'<span class="scroll" tabindex="0">{self._formula(body, True)}</span>'

    def latex_environment(self, name, body):
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")


def markdown(source):
    """Markdown with LaTeX as HTML with MathML; a formula that cannot be set stays LaTeX, in `<code class="unset">`."""
    return _decorated(MarkdownWithMath(renderer=_Renderer(escape=False, exclude_anchor_links=True)).render(source))


def _decorated(text):
    """HTML with its tables in boxes that scroll, numbers unbroken, verdicts in colour, and no styles of its own."""
    text = re.sub(r"<style scoped>.*?</style>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<td>([-+±\d.,\[\] *]+)</td>", r'<td class="number">\1</td>', text)
    text = re.sub(r"<td>([^<]*)</td>", lambda td: f"<td>{badge(td[1])}</td>" if td[1] in BADGES else td[0], text)
    text = text.replace("<table", '<div class="scroll" role="region" aria-label="table" tabindex="0"><table')
    return text.replace("</table>", "</table></div>")


def _prepared(notebook, heading):
    """A copy of the notebook whose tables are decorated and whose pictures have words."""
    notebook = nbformat.from_dict(notebook)
    under = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            under = next(iter(re.findall(r"^##+ (.+)", cell.source, re.MULTILINE)[-1:]), under)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:
                data["text/html"] = _decorated(data["text/html"])
            for kind in ("image/png", "image/jpeg"):
                if kind in data:
                    alt = f"{heading}: the figure" + (f" under “{under}”" if under else "")
                    output.metadata.setdefault(kind, {}).setdefault("alt", f"{alt}, drawn from values of the tables")
    return notebook


def _exporter():
    bare = {"exclude_input_prompt": True, "exclude_output_prompt": True}
    return HTMLExporter(template_name="basic", filters={"markdown2html": markdown}, **bare)


def _ticked(text):
    """Text as HTML, `code` in backticks."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _flat(values, before=""):
    """Nested values as lines: "packages, torch" and "2.13.0"."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}, ")
        else:
            yield f"{before}{key}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _templates():
    environment = Environment(
        loader=PackageLoader("earlib.harness"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"badge": badge, "ticked": _ticked, "flat": lambda values: list(_flat(values))}
    environment.globals |= {"mark": Markup(MARK), "verdicts": paper.verdict_meanings(), "sees_gold": records.SEES_GOLD}
    return environment


def write(folder):
    """Write the pages and then the index of a results folder; pages of results that are gone are removed.

    Parameters
    ----------
    folder : Path
        Its name is the profile.

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
    templates, exporter = _templates(), _exporter()
    bodies = {}
    for entry in entries:
        if entry.notebook:
            bodies[entry.id], _ = exporter.from_notebook_node(_prepared(entry.notebook, entry.heading))
            unset = bodies[entry.id].count('<code class="unset"')
            entry.remarks.extend([f"Formulas that cannot be set and stand as LaTeX: {unset}"] * bool(unset))
    paged = [entry for entry in entries if entry.page]
    common = {"profile": folder.name, "title": _profile_title(folder.name)}
    for before, entry, after in zip([None, *paged], paged, [*paged[1:], None], strict=False):
        files = sorted(file.name for kind in ("ipynb", "json") for file in folder.glob(f"{entry.id}.{kind}"))
        files += entry.pictures
        page = templates.get_template("page.html.j2").render(
            common, entry=entry, body=Markup(bodies[entry.id]), before=before, after=after, files=files
        )
        paths.write_atomically(folder / entry.page, page)
    index = folder / "index.html"
    page = templates.get_template("index.html.j2").render(
        common, sections=_sections(entries), entries=entries, missing=missing(folder), totals=_totals(entries)
    )
    paths.write_atomically(index, page)
    for file in folder.glob("*.html"):
        if file != index and file.name not in {entry.page for entry in paged} and MARK in file.read_text("utf-8"):
            file.unlink()
    return index, entries


def _profile_title(profile):
    try:
        return profiles.load_profile(profile).title
    except notebooks.Unusable:  # results of a profile that is gone can be read all the same
        return profile


def _sections(entries):
    sections = {title: [] for title in (*SECTIONS.values(), OWN)}
    for entry in entries:
        sections[OWN if entry.own else SECTIONS.get(entry.id[:3], SECTIONS[""])].append(entry)
    return {title: held for title, held in sections.items() if held}


def _totals(entries):
    """How many rows of the profile's own records have each verdict."""
    counts = Counter()
    for entry in entries:
        if entry.table and not entry.own:
            counts.update(dict(entry.table["counts"]))
    return _in_order(counts)


def main(arguments=None):
    """`python -m earlib.harness.pages [--profile P]`: write the report of a profile, and print what a reader should know."""
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
    print(f"{index}: {sum(entry.page is not None for entry in entries)} pages; notebooks missing: {len(lacking)}")


if __name__ == "__main__":
    main()
