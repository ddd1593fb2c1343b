"""`python -m earlib.harness.readme [--check]`: fill README.md, docs/results.md and start.ipynb from the records."""

import argparse
import json
import re
import sys
from importlib.resources import files

from jinja2 import Template

from earlib import paths
from earlib.harness import profiles, tables
from earlib.harness.findings import finding, five
from earlib.records import SEES_GOLD, load, plain, tally

PROFILE, LARGER = "laptop", "laptop-large"  # whose records are shown


def findings_table(records, folder):
    """The README's table: each notebook, in a folder, with the paper's table or figure and its result."""
    return _rendered("readme.md.j2", records=sum(records, []), folder=folder, finding=finding)


def start_page(found, records):
    """The notebook on which `make lab` opens: findings, and the notebooks with their results."""
    text = _rendered("start.md.j2", found=found, results=findings_table(records, "notebooks"))
    cell = {"cell_type": "markdown", "id": "start", "metadata": {}, "source": text.splitlines(keepends=True)}
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def results_tables(records, profile, larger=((), ())):
    """The tables of docs/results.md: headline rows, and all verdicts by notebook.

    What goes beyond the paper follows below a heading of its own, with its headline rows of the profile `larger`.
    """
    told = {"own": records[0], "others": records[1], "larger": [*larger[1]], "profile": profile}
    return _rendered("results.md.j2", **told, headline=tables.headline, gain=tables.gain, sees_gold=SEES_GOLD)


def _rendered(name, **told):
    source = files("earlib.harness").joinpath(f"templates/{name}").read_text("utf-8")
    return Template(source, trim_blocks=True).render(told, tally=tally).strip()


def both_kinds(folder):
    """The records in a folder: those of the paper's tables and figures, and those of what goes beyond it."""
    planned = profiles.planned(folder.name)
    ids = (path.stem for path in folder.glob("*.json") if "--" not in path.stem)
    ids = sorted(ids, key=lambda id: (id != "annotated_ear", not id.startswith("tab"), not id.startswith("fig"), id))
    records = [load(id, folder.name, folder.parent) for id in ids]
    for one in records:
        _check_parameters(one, planned.get(one["id"], {}), folder)
    return [[one for one in records if profiles.beyond(one["id"]) is side] for side in (False, True)]


def _check_parameters(record, planned, folder):
    """Refuse a record of other parameters than its profile's; a default of 0.0 stands for what a notebook works out."""
    for key, value in record["parameters"].items():
        expected = plain(planned.get(key, value))
        if value != expected and not (isinstance(expected, float) and expected == 0):
            raise ValueError(
                f"{paths.shown(folder / record['id'])}.json: {key}: expected {expected!r}, as in the profile "
                f"{folder.name}, found {value!r}; run `make {record['id'].partition('--')[0]} PROFILE={folder.name}`"
            )


def _filled(name, **parts):
    """A page as it is, and with each part between its two marks."""
    text = fresh = (paths.ROOT / name).read_text(encoding="utf-8")
    for part, filling in parts.items():
        pattern = re.compile(rf"(<!-- {part} -->\n).*?(<!-- /{part} -->)", re.DOTALL)
        if len(pattern.findall(text)) != 1:
            raise ValueError(f"{name}: expected one pair of lines <!-- {part} --> and <!-- /{part} -->; add them")
        fresh = pattern.sub(lambda marks, filling=filling: f"{marks[1]}{filling}\n{marks[2]}", fresh)
    return name, text, fresh


def main(arguments=None):
    """Fill the tables, or report that they are stale."""
    parser = argparse.ArgumentParser(prog="python -m earlib.harness.readme", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a table is stale")
    options = parser.parse_args(arguments)
    folder, larger = (paths.reference() / name for name in (PROFILE, LARGER))
    try:
        found = "\n".join(f"{number}. {one}" for number, one in enumerate(five(paths.reference()), 1))
        records, more = both_kinds(folder), both_kinds(larger)
        pages = [_filled("README.md", findings=found, results=findings_table(records, f"results/{PROFILE}"))]
        pages.append(_filled("docs/results.md", results=results_tables(records, PROFILE, more)))
        start = paths.ROOT / "start.ipynb"
        pages.append((start.name, start.read_text("utf-8") if start.exists() else "", start_page(found, records)))
        for name, text, fresh in pages:
            if options.check and fresh != text:
                sys.exit(f"{name} is stale: its tables are not those of the results; run `{parser.prog}`")
            if not options.check:
                paths.write_atomically(paths.ROOT / name, fresh)
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
