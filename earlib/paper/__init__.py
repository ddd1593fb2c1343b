"""Numbers that the paper prints, the labels of things, the claims, and the choices that the paper leaves open."""

import re
from collections import ChainMap
from functools import cache
from importlib import resources
from typing import NamedTuple

from earlib import paths
from earlib.core.config import near

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?")
ENCODERS, DATASETS = ("contriever", "stella", "gte"), ("locomo", "longmemeval")  # of the paper
OWN = re.compile(r"(.+)@(?:[0-9a-f]{12}|[0-9a-f]{40})")  # names of `earlib.data.own`
LANGUAGE_MODEL = "gpt-5-mini"  # of the paper: it answers, judges and cites
DEFAULT_ENCODER = "contriever"  # the paper's where it names none


@cache
def _yaml(name):
    return paths.read_yaml(resources.files(__name__).joinpath(f"{name}.yaml"))


class Reading(NamedTuple):
    """One way to read the paper, or to depart from it, where it leaves a choice; an entry of `alternatives.yaml`."""

    option: str
    choice: str
    changes: dict = {}
    setting: dict = {}
    rates: tuple = ()
    measure: str = "recall@5"
    concerns: tuple = ()


def alternatives():
    """Every `Reading` that can be compared, the default one first."""
    every = {"rates": [], "concerns": _yaml("alternatives")["concerns"]["all"]}
    entries = ({**every, **entry} for entry in _yaml("alternatives")["readings"])
    return [Reading(**{**entry, **{name: tuple(entry[name]) for name in every}}) for entry in entries]


def label(name):
    """Label of a name for readers, from `labels.yaml`; other names are shown with spaces for underscores.

    The user's own dataset or encoder is shown without the hash or the commit that ends its name.
    """
    mine = OWN.fullmatch(str(name))
    return mine[1] if mine else _labels().get(name, str(name).replace("_", " "))


@cache
def _labels():
    return dict(ChainMap(*(labels for kind, labels in _yaml("labels").items() if kind != "verdicts")))


def verdict_meanings():
    """Meaning of each verdict on a row or a claim, in the order in which they are counted."""
    return dict(_yaml("labels")["verdicts"])


def open_choices():
    """Choices that the paper leaves open or states in two ways, by name: open, said, reading, field, value."""
    return {name: {"field": None, "value": None, **one} for name, one in _yaml("readings").items()}


def claims_source():
    """Content of `claims.yaml`: claims by section and id, the records that decide them, and how quotes are shown."""
    return _yaml("claims")


def counterpart(id, dataset, encoder, /, **keys):
    """The paper's row for a measured setting, for `records.row(against=...)`; None for toy dialogues.

    An encoder that the paper does not use is compared with the paper's default one, None with a number that names none;
    `keys` are those in which the paper's row differs (`dataset="longmemeval"`).
    """
    if dataset not in DATASETS:
        return None
    theirs = encoder if encoder is None or encoder in ENCODERS else DEFAULT_ENCODER
    return {"id": id, "encoder": theirs, **keys}


def counterpart_setting(dataset, encoder, theirs):
    """Fields of a row that name the paper's setting (its dataset `theirs`) where it prints no number."""
    where = counterpart("", dataset, encoder)
    return {"reported_dataset": theirs, "reported_encoder": where["encoder"]} if where else {}


def unit(metric):
    """The unit of a metric as the paper prints it ("%", "s", ...), "" if it has none."""
    return _yaml("reported")["units"].get(metric, "")


def reported(id=None, **keys):
    """Rows of the numbers that the paper prints.

    Parameters
    ----------
    id : str, optional
        A table ("tab01" to "tab12") or a group of statements ("gain", "hyperparameters", ...); default all.
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
        For an id or the name of a key that no row has; the message names near matches.
    """
    if id is not None:
        _require("entry", id, _yaml("reported")["entries"])
    rows = [row for row in _rows() if id in (None, row["id"])]
    for key in keys:
        _require("key", key, {key for row in rows for key in row})
    return [dict(row) for row in rows if all(key in row and row[key] == value for key, value in keys.items())]


def _require(kind, name, names):
    if name not in names:
        hint = near(name, sorted(names)) or f"; known: {', '.join(sorted(names))}"
        raise KeyError(f"reported.yaml has no {kind} {name!r}{hint}")


def printed(id, **keys):
    """The one number that the keys name, as the paper prints it ("72.80"), or None; ValueError if several fit."""
    rows = reported(id, **keys)
    if len({row["value"] for row in rows}) > 1:
        differing = {key for row in rows for key in row if len({str(other.get(key)) for other in rows}) > 1}
        differing = ", ".join(sorted(differing - {"value", "printed", "quote", "unit"}))
        raise ValueError(f"{id}: {len(rows)} numbers fit {keys}; distinguish them by {differing}")
    return rows[0]["printed"] if rows else None


def value(id, **keys):
    """The one number that the keys name (55.06), or None if the paper prints none; errors as `printed`."""
    found = printed(id, **keys)
    return None if found is None else number(found)


def number(text):
    """The value of a printed number: "1,540" is 1540.0."""
    return float(text.replace(",", ""))


@cache
def _rows():
    rows = []
    for id, entry in _yaml("reported")["entries"].items():
        for row in entry["rows"]:
            keys = {"id": id, "place": entry.get("place"), **entry.get("common", {}), **row}
            for metric, shown in keys.pop("values").items():
                # The quote has the form in which it is printed: trailing zeros tell how far it was rounded.
                texts = [text for text in NUMBER.findall(row["quote"]) if number(text) == shown]
                if not texts:
                    raise ValueError(f"reported.yaml, entry {id}: its quote {row['quote']!r} lacks the value {shown}")
                own = {"metric": metric, "value": float(shown), "printed": texts[0]}
                rows.append({"unit": unit(metric), **keys, **own})
    return rows
