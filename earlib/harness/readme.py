"""`python -m earlib.harness.readme [--check]`: fill README.md, docs/results.md and start.ipynb from the records."""

import argparse
import sys

import nbformat
from jinja2 import Environment, PackageLoader
from nbformat import v4

from earlib import paper, paths
from earlib.harness import profiles, tables
from earlib.harness.findings import finding, five
from earlib.records import SEES_GOLD, further, load, tally

PROFILE, LARGER = "laptop", "laptop-large"  # whose records are shown
TEMPLATES = Environment(loader=PackageLoader("earlib.harness"), trim_blocks=True)
TEMPLATES.globals |= {"finding": finding, "tally": tally, "sees_gold": SEES_GOLD}
TEMPLATES.globals |= {"difference": tables.difference, "further": further, "keys_named": tables.keys_named}
TEMPLATES.globals |= {"label": tables.label, "measured": tables.measured}
TEMPLATES.globals["seeds"] = lambda record: record["parameters"].get("seeds", "–")
TEMPLATES.filters["label"] = paper.label


def _rendered(name, **told):
    return TEMPLATES.get_template(name).render(told).strip()


def results_tables(records, profile, larger=((), ())):
    """The tables of docs/results.md: headline rows, and all verdicts by notebook.

    What goes beyond the paper follows below a heading of its own, with its headline rows of the profile `larger`.
    """
    return _rendered("results.md.j2", own=records[0], others=records[1], larger=[*larger[1]], profile=profile)


def _start_page(found, results):
    """The notebook on which `make lab` opens: findings, and the notebooks with their results."""
    cell = v4.new_markdown_cell(_rendered("start.md.j2", found=found, results=results), id="start")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.writes(v4.new_notebook(cells=[cell], metadata={"kernelspec": kernel})) + "\n"


def in_order(ids):
    """Ids of results in the order of the report: the annotated paper, tables, figures, all else; own runs last."""

    def place(id):
        return "--" in id, *(not id.startswith(kind) for kind in ("annotated", "tab", "fig")), id

    return sorted(ids, key=place)


def both_kinds(folder):
    """The records in a folder: those of the paper's tables and figures, and those of what goes beyond it."""
    ids = in_order(path.stem for path in folder.glob("*.json") if "--" not in path.stem)
    records = [load(id, folder.name, folder.parent) for id in ids]
    return [[one for one in records if profiles.beyond(one["id"]) is side] for side in (False, True)]


def _filled(name, **parts):
    """The text of a page with each part between its two marks."""
    text = (paths.ROOT / name).read_text("utf-8")
    for part, filling in parts.items():
        before, start, rest = text.partition(f"<!-- {part} -->\n")
        _, end, after = rest.partition(f"<!-- /{part} -->")
        if not end:
            raise ValueError(f"{name}: expected one pair of lines <!-- {part} --> and <!-- /{part} -->; add them")
        text = f"{before}{start}{filling}\n{end}{after}"
    return text


def main(arguments=None):
    """Fill the tables, or report that they are stale."""
    parser = argparse.ArgumentParser(prog="python -m earlib.harness.readme", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a table is stale")
    options = parser.parse_args(arguments)
    try:
        found = "\n".join(f"{number}. {one}" for number, one in enumerate(five(paths.reference()), 1))
        records, more = (both_kinds(paths.reference() / name) for name in (PROFILE, LARGER))
        every = sum(records, [])
        here = _rendered("readme.md.j2", records=every, folder=f"results/{PROFILE}")
        there = _rendered("readme.md.j2", records=every, folder="notebooks")
        pages = {"README.md": _filled("README.md", findings=found, results=here)}
        pages["docs/results.md"] = _filled("docs/results.md", results=results_tables(records, PROFILE, more))
        pages["start.ipynb"] = _start_page(found, there)
        for name, text in pages.items():
            if not options.check:
                paths.write_atomically(paths.ROOT / name, text)
            elif text != (paths.ROOT / name).read_text("utf-8"):
                sys.exit(f"{name} is stale: its tables are not those of the results; run `{parser.prog}`")
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
