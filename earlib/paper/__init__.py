"""What the paper prints: its numbers (`reported.yaml`), each with its place, and its names for things."""

import re
from difflib import get_close_matches
from functools import cache
from importlib import resources

import yaml

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?")

ENCODERS, DATASETS = ("contriever", "stella", "gte"), ("locomo", "longmemeval")  # of the paper
LANGUAGE_MODEL = "gpt-5-mini"  # of the paper: it answers, judges and cites
DEFAULT_ENCODER = "contriever"  # what the paper uses wherever it names none


def counterpart(id, dataset, encoder, /, **keys):
    """Where the paper reports what was measured in some setting, for `report.row(against=...)`.

    Parameters
    ----------
    id : str
        As in `reported`.
    dataset, encoder : str
        The setting measured. Another encoder than the paper's is held against the one it uses by default, None
        against a number that names none; made dialogues are held against nothing.
    **keys
        Keys in which the paper's row differs (`dataset="longmemeval"`).

    Returns
    -------
    dict or None
    """
    if dataset not in DATASETS:
        return None
    theirs = encoder if encoder is None or encoder in ENCODERS else DEFAULT_ENCODER
    return {"id": id, "encoder": theirs, **keys}


def counterpart_setting(dataset, encoder, theirs):
    """Fields of a row that say for which setting of the paper it stands, where no number is held against it.

    Parameters
    ----------
    dataset, encoder : str
        The setting measured; made dialogues stand for nothing.
    theirs : str
        The dataset of the paper's figure.

    Returns
    -------
    dict
    """
    where = counterpart("tab02", dataset, encoder)
    return {"reported_dataset": theirs, "reported_encoder": where["encoder"]} if where else {}


def label(name):
    """Label of a name for readers, from `labels.yaml`; other names are shown with spaces for underscores."""
    return _labels().get(name, str(name).replace("_", " "))


@cache
def _labels():
    return {
        name: shown
        for kind, of_kind in _yaml("labels").items()
        if kind != "verdicts"
        for name, shown in of_kind.items()
    }


def open_choices():
    """Choices that the paper leaves open or states in two ways, by name: open, said, reading, field, value."""
    return {name: {"field": None, "value": None, **one} for name, one in _yaml("readings").items()}


def claims_source():
    """Content of `claims.yaml`: the records that claims are decided on, and the claims by section and id."""
    return _yaml("claims")


def verdict_meanings():
    """Meaning of each verdict on a row or a claim, in the order in which they are counted."""
    return dict(_yaml("labels")["verdicts"])


@cache
def _yaml(name):
    return yaml.safe_load(resources.files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8"))


def unit(metric):
    """The unit of a metric as the paper prints it ("%", "s", ...), "" if it has none."""
    return _yaml("reported")["units"].get(metric, "")


def reported(id=None, **keys):
    """The numbers that the paper prints, one a row.

    Parameters
    ----------
    id : str, optional
        A table ("tab01" to "tab12") or a group of statements ("gain", "hyperparameters", ...); all of them if left out.
    **keys
        Only rows that have each of these keys with this value: dataset, encoder, variant, metric, place, ...

    Returns
    -------
    list of dict
        Rows with id, place, quote (the literal LaTeX), their own keys, metric, value (float), printed (the number as
        it stands in the quote, "72.80") and unit.

    Raises
    ------
    KeyError
        For an id or the name of a key that no row has; the message names the near matches.
    """
    rows = _rows()
    if id is not None:
        _known("entry", id, _yaml("reported")["entries"])
        rows = [row for row in rows if row["id"] == id]
    for key in keys:
        _known("key", key, {key for row in rows for key in row})
    return [dict(row) for row in rows if all(key in row and row[key] == value for key, value in keys.items())]


def printed(id, **keys):
    """The one number that the keys name, as the paper prints it ("72.80"), or None if it prints none.

    Raises
    ------
    KeyError
        As `reported`.
    ValueError
        If the keys fit rows with different numbers.
    """
    rows = reported(id, **keys)
    if len({row["value"] for row in rows}) > 1:
        open_keys = {key for row in rows for key in row if len({str(other.get(key)) for other in rows}) > 1}
        told = sorted(open_keys - {"value", "printed", "quote", "unit"})
        raise ValueError(f"{id}: {len(rows)} numbers fit {keys}; tell them apart by {', '.join(told)}")
    return rows[0]["printed"] if rows else None


def value(id, **keys):
    """The one number that the keys name, or None if the paper prints none; errors as `printed`.

    Examples
    --------
    >>> value("tab02", dataset="locomo", encoder="contriever", variant="ear", metric="recall@5")
    55.06
    """
    found = printed(id, **keys)
    return None if found is None else number(found)


def number(text):
    """The value of a printed number: "1,540" is 1540.0."""
    return float(text.replace(",", ""))


def _known(kind, name, names):
    if name not in names:
        near = get_close_matches(str(name), sorted(names), n=3) or sorted(names)
        raise KeyError(f"reported.yaml has no {kind} {name!r}; did you mean {', '.join(near)}?")


@cache
def _rows():
    rows = []
    for id, entry in _yaml("reported")["entries"].items():
        for row in entry["rows"]:
            keys = {"id": id, "place": entry.get("place"), **entry.get("common", {}), **row}
            values = keys.pop("values")
            for metric, shown in values.items():
                found = {"metric": metric, "value": float(shown), "printed": _as_printed(id, shown, row["quote"])}
                rows.append({"unit": unit(metric), **keys, **found})
    return rows


def _as_printed(id, shown, quote):
    """The number in the form in which the quote has it: trailing zeros tell how far it was rounded."""
    for text in NUMBER.findall(quote):
        if number(text) == float(shown):
            return text
    raise ValueError(f"reported.yaml, entry {id}: the value {shown} does not stand in its quote {quote!r}")
