"""Answers to questions by a language model that reads a slate, and a judge's verdicts on them: the paper's F1 and J.

Beside them stand a constant answer, the judge's verdicts on planted answers, and a second pass of the judge: what a
model that cannot answer, or a judge that cannot judge, would reach as well.
"""

from itertools import chain, product
from typing import NamedTuple

import numpy as np

from earlib.core.config import Config
from earlib.experiments import comparisons, settings
from earlib.llm import NoModel, Request, grading, parsing, prompts
from earlib.llm.models import connect, reply_tokens

CONSTANT = "constant_answer"
MEASURES = ("f1", "j")


class Panel(NamedTuple):
    """Who answers, who judges, and which questions."""

    llm: str  # name of the answering model, as in `models.connect`
    judge: str
    questions: int  # the first so many evaluation questions of seed 0, those without gold turns among them


class Said(NamedTuple):
    """What a reply says."""

    value: object  # the answer (str) or the verdict (bool); None if it cannot be read
    refused: bool = False  # the model declined to reply


class Graded(NamedTuple):
    """Answers of one system to the questions of a panel, and the verdicts on them."""

    answers: list  # of Said
    verdicts: list  # of Said


def subset(setting, number):
    """Numbers of the questions of a panel, `[n]`: a random part, since seed 0 draws its evaluation questions."""
    return _split(setting)[1][:number]


def _split(setting):
    scopes = [query.scope for query in settings.benchmark(setting.dataset).asked]
    return settings.split(scopes, setting, 0)


def of_panel(panel, setting):
    """The questions of a panel, in order."""
    asked = settings.benchmark(setting.dataset).asked
    return [asked[number] for number in subset(setting, panel.questions)]


def texts(setting, numbers, slates):
    """The memories of slates as an answering model reads them: each behind the date of its session, if it has one.

    Retrieval does not see the dates. Without them "yesterday" could not be told, which questions of time are about.

    Parameters
    ----------
    setting : settings.Setting
    numbers : numpy.ndarray
        Question numbers, `[n]`.
    slates : numpy.ndarray
        Candidate indices, `[n, s]`.

    Returns
    -------
    list of list of str
    """
    index = settings.candidates_of(setting, Config().depth).index.numpy()
    memories = settings.benchmark(setting.dataset, setting.captions, setting.dates).memories
    read = [[memories[row] for row in rows] for rows in np.take_along_axis(index[numbers], slates, 1)]
    return [[f"[{one.date}] {one.text}" if one.date else one.text for one in slate] for slate in read]


def answer(panel, setting, slates):
    """Answers to the questions of a panel, from one slate each.

    Parameters
    ----------
    panel : Panel
    setting : settings.Setting
    slates : dict of str to numpy.ndarray
        Of each system, `[n, s]` candidate indices. All are asked at once; equal slates are one question.

    Returns
    -------
    dict of str to list of Said

    Raises
    ------
    NoModel
        If there is no model to ask.
    """
    client, questions, numbers = connect(panel.llm), of_panel(panel, setting), subset(setting, panel.questions)
    reads = [read for slate in slates.values() for read in texts(setting, numbers, slate)]
    given = _paired(questions * len(slates), reads)
    requests = [Request(prompts.answer(one.text, read), reply_tokens(panel.llm)) for one, read in given]
    replies = client.ask(requests)
    said = [_said(reply, parsing.answer, [one.text, *read]) for reply, (one, read) in _paired(replies, given)]
    if client.estimating:  # the judge is estimated too, on answers of about the right length
        said = [Said(one.answer) for one, _ in given]
    return {name: said[at * len(questions) :][: len(questions)] for at, name in enumerate(slates)}


def judge(panel, questions, answers, sample=0):
    """Verdicts on answers; that on an answer which cannot be read cannot be read either.

    Parameters
    ----------
    panel : Panel
    questions : sequence of Query
        One an answer.
    answers : sequence of Said
    sample : int
        Another number asks again: a second pass.

    Returns
    -------
    list of Said

    Raises
    ------
    NoModel
        If there is no model to ask.
    """
    client, verdicts = connect(panel.judge), list(answers)
    sent = {at: (one.text, one.answer, said.value) for at, (one, said) in enumerate(_paired(questions, answers))}
    sent = {at: given for at, given in sent.items() if given[-1] is not None}
    requests = [Request(prompts.judge(*given), reply_tokens(panel.judge), sample=sample) for given in sent.values()]
    for (at, given), reply in _paired(sent.items(), client.ask(requests)):
        verdicts[at] = _said(reply, parsing.verdict, given)
    return verdicts


def _said(reply, parse, given):
    return Said(parse(reply.text, given) if reply.status == "ok" else None, reply.status == "refused")


def _paired(*sequences):
    return list(zip(*sequences, strict=True))


def graded(panel, setting, slates):
    """Answers of several systems and the constant answer, with the verdicts on them; parameters as in `answer`.

    The constant answer is the one that does best, in F1, on the training questions of seed 0.

    Returns
    -------
    dict of str to Graded
    """
    said, asked = answer(panel, setting, slates), settings.benchmark(setting.dataset).asked
    constant = grading.constant_answer([asked[number].answer for number in _split(setting)[0]])
    said[CONSTANT] = [Said(constant)] * len(subset(setting, panel.questions))
    verdicts = iter(judge(panel, of_panel(panel, setting) * len(said), [*chain(*said.values())]))
    return {name: Graded(one, [next(verdicts) for _ in one]) for name, one in said.items()}


def scores(panel, setting, given):
    """F1 and J of graded answers, question by question.

    Returns
    -------
    dict of str to dict of str to numpy.ndarray
        By measure and system, `[1, n]`, between 0 and 1; NaN where a reply cannot be read.
    """
    golds = [one.answer for one in of_panel(panel, setting)]
    f1 = {name: grading.f1([said.value for said in one.answers], golds)[None] for name, one in given.items()}
    j = {name: grading.judged([said.value for said in one.verdicts])[None] for name, one in given.items()}
    return {"f1": f1, "j": j}


def rows(panel, setting, reached, baseline, names=None, categories=None, **keys):
    """Rows of F1 and J of several systems, each against the same baseline on the same questions.

    Parameters
    ----------
    panel : Panel
    setting : settings.Setting
    reached : dict of str to runs.Answers
        What each system retrieved; the slates of seed 0 are read.
    baseline : str
    names : sequence of str, optional
        The systems that get rows; default: all, and the constant answer.
    categories : sequence of str, optional
        Types of questions: each gets rows of its own, with the key `category`, beside those of all.
    **keys
        Further keys of the rows.

    Returns
    -------
    list of dict
        With the names of the models as `llm` and `judge`, and the replies that count nowhere as `unparsed` and
        `refused`. Without a model to ask, or where nothing can be read, rows without a value, with the reason.
    """
    names, types = list(names or (*reached, CONSTANT)), ["all types", *categories] if categories else [None]
    about = {"f1": {"llm": panel.llm}, "j": {"llm": panel.llm, "judge": panel.judge}}
    try:
        given = graded(panel, setting, {name: one.slates[0, : panel.questions] for name, one in reached.items()})
    except NoModel as error:
        return [
            dash(setting, name, metric, error, **about[metric], **_of_type(kind), **keys)
            for metric in MEASURES for kind in types for name in names
        ]  # fmt: skip
    made, queries = [], subset(setting, panel.questions)[None]
    for metric, values in scores(panel, setting, given).items():
        replies = {name: one.verdicts if metric == "j" else one.answers for name, one in given.items()}
        for kind, name in product(types, names):
            counts = _counts(setting, queries, kind)
            part = {one: np.where(counts, values[one], np.nan) for one in (name, baseline)}
            lost = [said for said, here in _paired(replies[name], counts[0]) if here and said.value is None]
            refused = sum(said.refused for said in lost)
            told = {**about[metric], **_of_type(kind), **keys, "unparsed": len(lost) - refused, "refused": refused}
            against = None if name == baseline else part[baseline]
            made.append(row(setting, name, metric, part[name], np.where(counts, queries, -1), against, **told))
    return made


def _of_type(kind):
    return {"category": kind} if kind else {}


def _counts(setting, queries, kind):
    """Which questions are of a type, bool of the shape of `queries`."""
    asked = settings.benchmark(setting.dataset).asked
    return np.array([[kind in (None, "all types", asked[number].category) for number in queries[0]]])


def row(setting, variant, metric, values, queries, baseline=None, **keys):
    """One row of a language model's numbers, as `comparisons.rows` makes it; a dash where no reply can be read.

    Parameters
    ----------
    setting : settings.Setting
    variant, metric : str
    values, queries : numpy.ndarray
        `[1, n]`; NaN where a reply cannot be read.
    baseline : numpy.ndarray, optional
        Values on the same questions.
    **keys
        Further keys and fields: `llm`, `judge`, `unparsed`, `refused`.

    Returns
    -------
    dict
        It varies between machines, which round a model's numbers differently.
    """
    if np.isnan(values).all():
        return dash(setting, variant, metric, f"none of {(queries >= 0).sum()} replies could be read", **keys)
    if baseline is not None and np.isnan(values - baseline).all():
        baseline = None
    alone = setting.model_copy(update={"seeds": 1})
    (made,) = comparisons.rows(alone, variant, values[None], queries, baseline, measures=(metric,), **keys, varies=True)
    return {**made, "excluded": None}  # what is left out here was not read: `unparsed` and `refused` count it


def dash(setting, variant, metric, reason, **keys):
    """A row like those of `row` without a value: no model to ask, or nothing that could be read."""
    where = {"dataset": setting.dataset, "encoder": setting.encoder, "split": setting.split, "variant": variant}
    return {**where, "metric": metric, **keys, "measured": None, "reason": str(reason), "varies": True}


# What shows a judge that cannot judge.
PLANTED = {"gold": "the gold answer", "reworded": "the gold answer in a sentence", "other": "another question's answer"}
AGAIN = "of two passes"


def judge_rows(panel, setting, reached, baseline, **keys):
    """Rows that tell what the judge is worth: how often it is right on planted answers, and how often it changes.

    Right are the verdict Yes on a question's gold answer, as it is or in a sentence, and No on the answer to another
    question (`grading.planted`). Flips are verdicts on the baseline's answers that a second pass changes.

    Parameters
    ----------
    panel, setting, reached, baseline
        As in `rows`.

    Returns
    -------
    list of dict
        With the key `candidate`: what was judged.
    """
    questions, queries = of_panel(panel, setting), subset(setting, panel.questions)[None]
    golds, categories = [one.answer for one in questions], [one.category for one in questions]
    tried = grading.planted(golds, categories, np.random.default_rng(0))
    told = {"judge": panel.judge, **keys}
    try:
        verdicts = judge(panel, [questions[one.question] for one in tried], [Said(one.candidate) for one in tried])
        said = answer(panel, setting, {baseline: reached[baseline].slates[0, : panel.questions]})[baseline]
        passes = [[one.value for one in judge(panel, questions, said, sample)] for sample in (0, 1)]
    except NoModel as error:
        right = [dash(setting, None, "judge_right", error, candidate=name, **told) for name in PLANTED.values()]
        return [*right, dash(setting, None, "judge_flips", error, candidate=AGAIN, llm=panel.llm, **told)]
    made = []
    for kind, name in PLANTED.items():
        values, place = np.full(queries.shape, np.nan), np.full(queries.shape, -1)
        for one, said in _paired(tried, verdicts):
            if one.kind == kind:
                place[0, one.question] = queries[0, one.question]
                values[0, one.question] = np.nan if said.value is None else said.value == one.right
        lost = {"unparsed": int((np.isnan(values) & (place >= 0)).sum())}
        made.append(row(setting, None, "judge_right", values, place, candidate=name, **told, **lost))
    flips = grading.flips(*passes)[None]
    lost = {"unparsed": int(np.isnan(flips).sum())}
    return [*made, row(setting, None, "judge_flips", flips, queries, candidate=AGAIN, llm=panel.llm, **told, **lost)]
