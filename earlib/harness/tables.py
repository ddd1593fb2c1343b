"""Tables and captions drawn from records, for the notebooks and the README."""

from html import escape

import pandas as pd
from IPython.display import HTML

from earlib import paper
from earlib.records import SEES_GOLD, SETTING, key_of, matching, named, shown

IN_MS = ("latency", "latency_p50", "latency_p90", "latency_p99")  # in seconds in the paper and in records


def frame(record, **where):
    """Rows of a record as a DataFrame; only those that have this value, or one of a tuple of values, of each key."""
    return pd.DataFrame(_select(record, where))


def _select(record, where):
    rows = matching(record["rows"], where)
    if not rows:
        raise ValueError(f"record {record['id']}: no row has {where}")
    return rows


def table(record, index=("variant",), columns=("metric",), **where):
    """Table of measured values beside the paper's, with verdicts.

    Parameters
    ----------
    record : dict
    index, columns : tuple of str
        Keys that name the rows and columns of the table, in the record's order.
    **where
        Only rows with this value, or one of a tuple of values, of each key.

    Returns
    -------
    pandas.DataFrame
        Text; below each column key "measured" (mean ± deviation over seeds [95 % interval], * where the critic sees
        test gold, a dash where not run), "paper" and "verdict".

    Raises
    ------
    ValueError
        If two rows fall into one cell.
    """
    cells = {}
    for row in _select(record, where):
        column = tuple(label(row, key) for key in columns)
        cell = cells.setdefault(tuple(label(row, key) for key in index), {})
        if (*column, "measured") in cell:
            raise ValueError(f"record {record['id']}: two rows in the cell of {named(row)}; name a further key")
        cell[(*column, "measured")] = measured(row)
        cell[(*column, "paper")] = _printed(row)
        cell[(*column, "verdict")] = "" if row["verdict"] == "not run" else shown(row)
    heads = list(dict.fromkeys(head for cell in cells.values() for head in cell))
    lines = pd.MultiIndex.from_tuples(cells, names=[key.replace("_", " ") for key in index])
    body = [[cell.get(head, "") for head in heads] for cell in cells.values()]
    return pd.DataFrame(body, index=lines, columns=pd.MultiIndex.from_tuples(heads))


def differences(record, index=("variant",), **where):
    """Table of paired differences with their intervals, and the paper's; parameters as in `table`."""
    lines, rows = [], [row for row in _select(record, where) if row.get("difference") is not None]
    unit = " (points)" if all(paper.unit(row["metric"]) == "%" for row in rows) else ""
    for row in rows:
        baseline = row.get("compared_with")
        other = next((one for one in record["rows"] if baseline and key_of(one) == key_of({**row, **baseline})), {})
        printed = [one.get("reported") for one in (row, other)]
        star = " *" if row.get("sees_gold") or other.get("sees_gold") else ""
        line = {key.replace("_", " "): label(row, key) for key in index}
        line["compared with"] = keys_named(baseline) if baseline else ""
        line[f"difference{unit}"] = difference(row) + star
        line["in the paper"] = "" if None in printed else f"{printed[0] - printed[1]:+.1f}"
        lines.append(line | {"verdict": row.get("difference_verdict") or row["verdict"]})
    return pd.DataFrame(lines).set_index([key.replace("_", " ") for key in index])


def stated(id, **keys):
    """Table of what the paper states in its text, with the place.

    Parameters
    ----------
    id : str
        A group of statements, as in `earlib.paper.reported`.
    **keys
        Only statements with this value of each key.

    Returns
    -------
    pandas.DataFrame
    """
    lines = {}
    heads = {"data": "dataset", "system": "variant", "compared with": "compared_with", "metric": "metric"}
    for one in paper.reported(id, **keys):
        line = {head: paper.label(one[key]) if one.get(key) else "" for head, key in heads.items()}
        line["the paper states"] = f"{one['printed']} {one['unit']}".strip()
        lines.setdefault(tuple(line.values()), {**line, "where": one["place"]})
    return pd.DataFrame(lines.values()).set_index("data")


def difference(row):
    """The difference of a row in text, with its interval."""
    scale = 1000 if row["metric"] in IN_MS else 1
    value, low, high = (row[key] and scale * row[key] for key in ("difference", "difference_low", "difference_high"))
    return f"{value:+.1f}" + ("" if low is None else f" [{low:+.1f}, {high:+.1f}]")


def label(row, key):
    """Label of a key's value in a row: "Recall@5 (%)", "Exploration rounds 4", "" without one."""
    value = row.get(key)
    if key == "metric" and (unit := "ms" if value in IN_MS else paper.unit(value)):
        return f"{paper.label(value)} ({unit})"
    if isinstance(value, int | float):  # a number alone would not say what it counts
        return f"{paper.label(key)} {value:,}"
    return "" if value is None else paper.label(value)


def measured(row):
    """The value of a row in text: mean ± deviation over seeds [95 % interval], * where the critic sees test gold."""
    if row["measured"] is None:
        return "–"
    mean, std, low, high = (_number(row[key], row["metric"]) for key in ("measured", "std", "low", "high"))
    text = mean + (f" ± {std}" if std else "") + (f" [{low}, {high}]" if low else "")
    text += f" ({row['answer_words']:g} words)" if row.get("answer_words") else ""
    return text + (" *" if row.get("sees_gold") else "")


def _printed(row):
    """The paper's number as it is printed there; a latency, which it gives in seconds, in ms."""
    if row.get("printed") and row["metric"] in IN_MS:
        return f"{1000 * row['reported']:,.0f}"
    return row.get("printed") or ""


def _number(value, metric):
    if value is None:
        return ""
    if metric in IN_MS:
        return f"{1000 * value:,.1f}"
    whole = float(value).is_integer() or abs(value) >= 1000
    form = ".1f" if paper.unit(metric) == "%" else ",.0f" if whole else ".3g"
    return f"{value:{form}}"


def caption(record, signs=True, **where):
    """Caption of a table of these rows: setting, questions, seeds, and what was left out or not run.

    Without `signs`, for a table of plain numbers, it does not explain ±, [ ], * and the verdicts of `table`.
    """
    rows = _select(record, where)
    run = [row for row in rows if row["measured"] is not None]
    directed = [row for row in run if row["verdict"] in ("same direction", "other direction")]
    baselines = _unique(keys_named(row["compared_with"]) for row in directed)
    meaning = {"std": "± standard deviation over seeds", "low": "[ ] 95 % interval"}
    meaning["answer_words"] = "( ) mean length of the answers"
    spread = [text for key, text in meaning.items() if any(row.get(key) is not None for row in run)]
    parts = [scope(run)]
    if signs:
        direction = f"Direction compared with {_joined(baselines)}" if baselines else ""
        seen = any(row.get("sees_gold") for row in run)
        parts += [", ".join(spread), direction, f"* {SEES_GOLD}" if seen else ""]
    parts += [f"– {reason}" for reason in _unique(row["reason"] for row in rows if row["measured"] is None)]
    return ". ".join(part.rstrip(".") for part in parts if part) + "."


def scope(rows):
    """Scope of rows: data, encoder, split, questions, seeds, and what was left out."""
    counts = [
        _count(rows, ("n_queries", "n_queries_most"), "question{s}"),
        _count(rows, ("seeds",), "seed{s}"),
        _count(rows, ("excluded",), "question{s} without gold left out of a seed"),
        _count(rows, ("unparsed",), "of the replies of a line could not be read and are not scored"),
        _count([row for row in rows if row.get("refused")], ("refused",), "were refused"),
        _count(rows, ("abstentions",), "abstention question{s} left out"),
    ]
    return ". ".join(filter(None, (_measured_on(rows), _setting(rows), ", ".join(filter(None, counts)))))


def _setting(rows):
    """Name what stands in for the paper's dataset, encoder and model: "LoCoMo stands in for LongMemEval, ..."."""
    pairs = _unique((row.get(key), row.get(f"reported_{key}")) for key in SETTING for row in rows)
    pairs = [map(paper.label, pair) for pair in pairs if all(pair) and len({*pair}) == 2]
    said = ["{} for {}".format(*pair) for pair in pairs]
    return ", ".join(said).replace(" for ", " stands in for ", 1)


def _measured_on(rows):
    found = {key: _unique(row.get(key) for row in rows) for key in ("dataset", "encoder", "split", "llm", "judge")}
    words = {"split": "{} split", "llm": "language model {}", "judge": "judge {}"}
    named = {key: " and ".join(map(paper.label, values)) for key, values in found.items() if values}
    return ", ".join(words.get(key, "{}").format(name) for key, name in named.items())


def _count(rows, keys, what):
    found = sorted({row[key] for row in rows for key in keys if row.get(key) is not None})
    if not found:
        return ""
    span = f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"
    return f"{span} {what.format(s='' if found == [1] else 's')}"


def keys_named(keys):
    """Labels of keys that name other rows: "RL baseline, Exploration rounds 4"."""
    named = [(key, value) for key, value in keys.items() if value is not None]
    return ", ".join(paper.label(value) if key == "variant" else f"{paper.label(key)} {value}" for key, value in named)


def _joined(words):
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _unique(values):
    return [value for value in dict.fromkeys(values) if value is not None]


def show(record, index=("variant",), columns=("metric",), named=False, **where):
    """`table` with its caption, as the output of a notebook cell."""
    shown = _without_empty_paper(table(record, index, columns, **where), record, where)
    return HTML(html(shown, caption(record, **where), named))


def printed(record, id, index=("variant",), columns=("metric",), **where):
    """The paper's table `id` in its own rows, columns and order, our value and its verdict beneath each number.

    What the paper does not have follows after its own. A line of an encoder that stands in for the paper's
    names that one with the paper's number. Parameters and result as in `table`.
    """
    rows, keys = _select(record, where), (*index, *columns)
    values = {key: list(dict.fromkeys(row.get(key) for row in [*paper.reported(id), *rows])) for key in keys}

    def in_order(keys):
        def place(row):
            return [values[key].index(row.get(key)) for key in keys]

        theirs = [place(row) for row in paper.reported(id)]
        lines = sorted(theirs, key=theirs.index)  # each line of the paper's once or more, in its order
        if lines == sorted(lines):
            return sorted(rows, key=place)
        return sorted(rows, key=lambda row: [*lines, place(row)].index(place(row)))  # Table 6: no key comes first

    heads = [tuple(label(row, key) for key in columns) for row in in_order(columns)]
    heads = list(dict.fromkeys(head[0] if len(head) == 1 else head for head in heads))
    lines = table({**record, "rows": in_order(index)}, index, columns).stack(-1, future_stack=True)
    lines = (lines[heads] if columns else lines.to_frame("")).fillna("").replace("not in the paper", "")
    order = {name: at for at, name in enumerate(("paper", "measured", "verdict"))}
    groups = lines.groupby(level=list(range(len(index))), sort=False)
    lines = pd.concat(part.sort_index(level=-1, key=lambda names: names.map(order)) for _, part in groups)
    lines = lines[(lines != "").any(axis=1)]
    theirs = {tuple(label(row, key) for key in index): _of_paper(row, index) for row in rows if row.get("printed")}
    named = [(*at[:-1], theirs[at[:-1]] if at[-1] == "paper" else at[-1]) for at in lines.index]
    return lines.set_axis(pd.MultiIndex.from_tuples(named, names=lines.index.names))


def _of_paper(row, index):
    """Name of the line of the paper's number: "paper (Contriever)" in a line of the encoder that stands in for it."""
    theirs = row.get("reported_encoder")
    return f"paper ({paper.label(theirs)})" if "encoder" in index and theirs not in (None, row["encoder"]) else "paper"


def show_printed(record, id, index=("variant",), columns=("metric",), **where):
    """`printed` with its caption, as the output of a notebook cell."""
    return HTML(html(printed(record, id, index, columns, **where), caption(record, **where)))


def show_differences(record, index=("variant",), **where):
    """`differences` with their caption, as the output of a notebook cell."""
    rows = _select(record, where)
    if all(row.get("difference") is None for row in rows):  # nothing was run: the caption says why
        return HTML(html(None, caption(record, **where)))
    shown = _without_empty_paper(differences(record, index, **where), record, where)
    return HTML(html(shown, caption(record, **where) + " [ ] 95 % interval of the difference."))


def _without_empty_paper(frame, record, where):
    """The table without the columns for the paper's numbers, where the paper has none."""
    if any(row.get("printed") for row in _select(record, where)):
        return frame
    heads = frame.columns.get_level_values(-1)
    left = frame.loc[:, ~heads.isin(["paper", "in the paper", "verdict"])]
    alone = left.columns.nlevels > 1 and {*left.columns.get_level_values(-1)} == {"measured"}
    return left.droplevel(-1, axis=1) if alone else left


def folded(summary, *shown):
    """Outputs of `show` and the like behind a line that opens them: for what a first reader does not need."""
    return HTML(f"<details><summary>{escape(summary)}</summary>{''.join(one.data for one in shown)}</details>")


def _without_constant(frame):
    """The table without index levels and baselines that are the same in all lines, and what these are."""
    values = [frame.index.get_level_values(level) for level in range(frame.index.nlevels)]
    constant = [level for level, one in enumerate(values) if one.nunique() == 1]
    same = [str(values[level][0]) for level in constant]
    if len(constant) == len(values):
        return frame, []
    head = "compared with"
    if head in frame.columns and len(frame.columns) > 1 and frame[head].nunique() == 1:
        same += [f"{head} {baseline}" for baseline in {*frame[head]} - {""}]
        frame = frame.drop(columns=head)
    return frame.droplevel(constant), same


def html(frame, caption="", named=False):
    """A table, or None, and its caption as HTML; `named` keys stand above the names of the lines."""
    if frame is not None and len(frame) > 1:
        frame, same = _without_constant(frame)
        caption = ". ".join(filter(None, [", ".join(one for one in same if one not in caption), caption]))
    parts = [] if frame is None else [frame.to_html(border=0, classes="earlib", index_names=named)]
    return "\n".join([*parts, f'<p class="caption">{escape(caption)}</p>'] if caption else parts)
