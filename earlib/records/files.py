"""Records as files: made and judged, written a row a line, and with all fields when read."""

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
    full = _all_fields(raw, f"record {id}")
    judge(full, id)
    paths.announce(profile)
    return {**raw, "rows": [_shortened(one) for one in full]}


def _all_fields(raw, where):
    """Rows of a raw record with all fields, or a ValueError that names place, field and what was expected."""
    try:
        return [one.model_dump() for one in Record.model_validate(raw).rows]
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the whole"
        match first["loc"]:
            case ("rows", number, *_) if isinstance(raw["rows"][number], dict):
                field += f" ({named(raw['rows'][number])})"
        raise ValueError(f"{where}: {field}: {first['msg']}, found {str(first['input'])[:80]}") from None


def _shortened(row):
    """The row in its fixed order of keys, without optional fields that are not set."""
    own = further(row)
    shown = {*KEYS, *own, *ALWAYS, *(key for key, value in row.items() if value is not None and value is not False)}
    return {key: row[key] for key in (*KEYS, *own, *VALUES) if key in shown}


def plain(value):
    """The value as a record holds it: in JSON's types, floats at six significant digits."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    return float(f"{value:.6g}") if isinstance(value, float) else value


def save(record):
    """Write a record as `<profile>/<id>.json` with `paths.save_result`; a row a line, for readable diffs.

    Of the fields that every row has, those that are null are left out: `load` puts them back.
    """
    kept = ({key: one for key, one in row.items() if one is not None or key not in ALWAYS} for row in record["rows"])
    lines = ",".join(f"\n  {json.dumps(row, ensure_ascii=False, allow_nan=False)}" for row in kept)
    frame = json.dumps({**record, "rows": []}, ensure_ascii=False, allow_nan=False, indent=1)
    text = frame.removesuffix("]\n}") + lines + "\n ]\n}\n"
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
    rows = [_shortened(row) for row in _all_fields(raw, path)]
    if raw["id"] != id:
        raise ValueError(f"{path}: id: expected {id}, found {raw['id']}; {again}")
    return {**raw, "rows": rows}
