"""Rows of a record: their fields, the keys that name them, and the paper's number for each."""

from pydantic import BaseModel, ConfigDict, Field, model_validator

from earlib import paper

SEES_GOLD = "the critic sees test gold (noisy)"
FORM = ConfigDict(strict=True, allow_inf_nan=False)


class Row(BaseModel, extra="allow", **FORM):
    """One measured value, the paper's value, and the verdict; further keys are allowed."""

    dataset: str
    encoder: str | None = None
    variant: str | None = None
    metric: str
    n_queries: int | None = Field(None, description="questions that the value is a mean over; the fewest of a seed")
    n_queries_most: int | None = Field(None, description="the most of a seed")
    excluded: int | None = Field(None, description="questions without any gold memory, left out; the most of a seed")
    unparsed: int | None = Field(None, description="replies of a language model that could not be parsed; not scored")
    refused: int | None = Field(None, description="those in which it declined to answer; not scored")
    abstentions: int | None = Field(None, description="abstention questions left out, which the rubric does not grade")
    answer_words: float | None = Field(None, description="mean length of the answers that were judged")
    seeds: int | None = Field(None, description="number of seeds")
    measured: float | None = None
    std: float | None = Field(None, description="standard deviation over seeds")
    low: float | None = Field(None, description="95 % interval (`intervals.summary`)")
    high: float | None = None
    compared_with: dict | None = Field(None, description="keys of the row that this one is compared with")
    difference: float | None = Field(None, description="this value minus that row's, paired by question")
    difference_low: float | None = None
    difference_high: float | None = None
    p: float | None = Field(None, description="paired permutation test of the difference over questions", ge=0, le=1)
    reported: float | None = None
    printed: str | None = Field(None, description="the reported number as the paper prints it")
    reported_dataset: str | None = Field(None, description="the setting of the reported number")
    reported_encoder: str | None = None
    reported_llm: str | None = Field(None, description="the language model of the reported number")
    headline: bool = Field(False, description="shown in the README")
    sees_gold: bool = Field(False, description=SEES_GOLD)
    varies: bool = Field(False, description="differs between machines (a time, a first passage); never compared")
    verdict: str | None = None
    difference_verdict: str | None = Field(None, description="verdict on the difference, in the paper's own setting")
    decided: str | None = Field(None, description="the verdict of a row that has rules of its own (a claim)")
    reported_verdict: str | None = Field(None, description="a claim's verdict on the paper's own numbers")
    reported_reason: str | None = None
    parts: dict | None = Field(None, description="of a claim, the verdict on each part")
    readings: str | None = Field(None, description="of a claim, under how many of those tried its verdict stands")
    beside: str | None = Field(None, description="what sees test gold against the equal-call control, and by how much")
    comparison: str | None = Field(None, description="of a claim, the paired difference that decides")
    corrected: float | None = Field(None, description="its p, corrected for all distinct comparisons", ge=0, le=1)
    reason: str | None = Field(None, description="why there is no measured value; of a claim, why this verdict")

    @model_validator(mode="after")
    def _consistent(self):
        if self.measured is None and not self.reason:
            raise ValueError("a row without a measured value needs a reason (`reason`)")
        if (self.reported is None) != (self.printed is None):
            raise ValueError("`reported` and `printed` go together; leave both to `against`")
        for kind in ("", "difference_"):
            low, high = getattr(self, f"{kind}low"), getattr(self, f"{kind}high")
            if (low is None) != (high is None) or (low is not None and low > high):
                raise ValueError(f"an interval needs both ends, the lower first, not {low} to {high}")
        return self


class Record(BaseModel, extra="forbid", **FORM):
    """The results of one notebook with one set of parameters."""

    id: str = Field(pattern=r"^[a-z0-9_]+(--[\w.,=+-]+)?$")
    title: str
    profile: str = Field(pattern=r"^[\w.-]+$")
    parameters: dict
    provenance: dict
    rows: list[Row]


SETTING = ("dataset", "encoder", "llm")
KEYS = ("dataset", "encoder", "variant", "metric")
VALUES = tuple(name for name in Row.model_fields if name not in KEYS)


def row(dataset, encoder, variant, metric, *, against=None, compared_with=None, **values):
    """One row of a record; `record` adds its verdict.

    Parameters
    ----------
    dataset, encoder, variant, metric : str
        Encoder and variant may be None.
    against : dict, optional
        The paper's row: the `id` of `earlib.paper.reported`, and keys whose values differ there or are further ones
        ({"id": "tab03", "dataset": "longmemeval"}). A number that the paper does not print stays empty.
    compared_with : str or dict, optional
        The row that this one is compared with: its variant, or the keys in which it differs ({"rounds": 4}).
    **values
        Fields of `Row`, and further keys that distinguish rows (rounds=2, category="temporal").

    Returns
    -------
    dict
    """
    keys = {"dataset": dataset, "encoder": encoder, "variant": variant, "metric": metric}
    if isinstance(compared_with, str):
        compared_with = {"variant": compared_with}
    if values.get("std") != values.get("std"):  # NaN: one seed has no deviation
        values["std"] = None
    return {**keys, **values, **_reported(keys, against or {}), "compared_with": compared_with}


def not_run(id, rows, found):
    """Rows for the numbers of the paper's table `id` that are not among the measured `rows`, each with the reason.

    Parameters
    ----------
    id : str
    rows : list of dict
    found : earlib.experiments.several.Several
        The settings that were asked for, and why some of them cannot be had.

    Returns
    -------
    list of dict
    """
    held = {(one.get("reported_dataset"), one.get("reported_encoder"), one["variant"], one["metric"]) for one in rows}
    absent = [keys for one in paper.reported(id) if (keys := tuple(one.get(key) for key in KEYS)) not in held]
    usual = "this notebook does not measure it"
    return [row(*keys, against={"id": id}, measured=None, reason=found.absent(*keys[:2]) or usual) for keys in absent]


def _reported(keys, against):
    asked = {key: value for key, value in {**keys, **against}.items() if value is not None}
    printed = paper.printed(**asked) if against else None
    if printed is None:
        return {}
    found = paper.reported(**asked)[0]
    setting = {f"reported_{key}": found.get(key) for key in ("dataset", "encoder")}
    by_a_model = asked["metric"] in ("f1", "j") or asked.get("critic") == paper.LANGUAGE_MODEL  # it answers, or cites
    setting["reported_llm"] = paper.LANGUAGE_MODEL if by_a_model else None
    return {"reported": found["value"], "printed": printed, **setting}


def matching(rows, where):
    """The rows that have this value, or one of a tuple or list of values, of each key."""
    wanted = {key: value if isinstance(value, tuple | list) else (value,) for key, value in where.items()}
    return [row for row in rows if all(row.get(key) in values for key, values in wanted.items())]


def key_of(row):
    """Keys of a row and their values, without what was measured; hashable."""
    return tuple(sorted((key, str(value)) for key, value in row.items() if key not in VALUES and value is not None))


def named(row):
    """Name of a row in messages: "locomo/minilm/ear/recall@5/rounds=2"."""
    names = [str(row[key]) for key in KEYS if row.get(key) is not None]
    return "/".join(names + [f"{key}={value}" for key, value in further(row).items()])


def further(row):
    """Keys of a row beyond the fields of `Row`, with their values."""
    return {key: value for key, value in row.items() if key not in Row.model_fields}
