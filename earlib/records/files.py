"""Records as files: made and judged, written a row a line, and all_fields when read."""

import json

import numpy as np
from pydantic import ValidationError

from earlib import paths
from earlib.core.config import Config
from earlib.records.rows import KEYS, VALUES, Record, further, named
from earlib.records.verdicts import judge

ALWAYS = ("n_queries", "seeds", "measured", "std", "low", "high", "reported", "verdict", "reason")


def record(id, title, profile, parameters, provenance, rows):
    """A record with its verdicts, in the form in which it is saved.

    Parameters
    ----------
    id : str
        The notebook's name; "--" and a suffix for a run with other parameters than the profile's.
    title, profile : str
    parameters, provenance : dict
    rows : list of dict
        See `row`.

    Returns
    -------
    dict
        Floats are rounded to six significant digits.

    Raises
    ------
    ValueError
        For rows that are incomplete, inconsistent or not distinct; names the row and the field.
    """
    depth = Config().depth
    if depth != Config.model_fields["depth"].default:  # of the whole run
        parameters = parameters | {"depth": depth}
    head = {"id": id, "title": title, "profile": profile, "parameters": parameters, "provenance": provenance}
    raw = plain({**head, "rows": rows})
    full = all_fields(raw, f"record {id}")
    judge(full, id)
    paths.announce(profile)
    return {**raw, "rows": [_shortened(one) for one in full]}


def all_fields(raw, where):
    """Rows of a raw record with all fields, or a ValueError that names place, field and what was expected."""
    try:
        return [one.model_dump() for one in Record.model_validate(raw).rows]
    except ValidationError as error:
        first = error.errors()[0]
        loc = first["loc"]
        field = ".".join(map(str, loc)) or "the whole"
        if loc[:1] == ("rows",) and len(loc) > 1 and isinstance(raw["rows"][loc[1]], dict):
            field += f" ({named(raw['rows'][loc[1]])})"
        raise ValueError(f"{where}: {field}: {first['msg']}, found {str(first['input'])[:80]}") from None


def _shortened(row):
    """The row in its fixed order of keys, without optional fields that are not set."""
    own = further(row)
    shown = (*KEYS, *own, *ALWAYS)
    order = (*KEYS, *own, *VALUES)
    return {key: row[key] for key in order if key in shown or (row[key] is not None and row[key] is not False)}


def plain(value):
    """The value as a record holds it: in JSON's types, floats at six significant digits."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return float(f"{value:.6g}") if isinstance(value, float) else value


def save(record):
    """Write a record as `<profile>/<id>.json` with `paths.save_result`; a row a line, for readable diffs.

    Of the fields that every row has, those that are null are left out: `load` puts them back.
    """
    head = {key: value for key, value in record.items() if key != "rows"}
    kept = ({key: one for key, one in row.items() if one is not None or key not in ALWAYS} for row in record["rows"])
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in kept]
    top = json.dumps(head, ensure_ascii=False, allow_nan=False, indent=1)[:-2]
    text = top + ',\n "rows": [' + ",".join(f"\n  {line}" for line in lines) + "\n ]\n}\n"
    paths.save_result(f"{record['profile']}/{record['id']}.json", text)


def load(id, profile, folder=None):
    """Read a record from `folder`, default `paths.results()`; ValueError if it is not the record that its name says."""
    path = (folder or paths.results()) / profile / f"{id}.json"
    again = f"make it with `python -m earlib.run {id.partition('--')[0]} --profile {profile}`"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such record; {again}") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); {again}") from None
    rows = [_shortened(row) for row in all_fields(raw, path)]
    if raw["id"] != id:
        raise ValueError(f"{path}: id: expected {id}, found {raw['id']}; {again}")
    return {**raw, "rows": rows}
