"""Answers to questions by a language model that reads a slate, and a judge's verdicts on them: the paper's F1 and J.

Controls beside them: a constant answer, the judge's verdicts on planted answers, and a second pass of the judge.
Abstention questions are left out: the paper's rubric does not grade them, and its values fit denominators without them.
"""

from itertools import chain, product
from typing import NamedTuple

import numpy as np

from earlib.core.config import Config
from earlib.experiments import comparisons, settings
from earlib.llm import NoModel, Request, grading, parsing, prompts
from earlib.llm.models import connect, reply_tokens

CONSTANT = "constant_answer"
METRICS = ("f1", "j")
JUDGED = {"gold": "the gold answer", "reworded": "the gold answer in a sentence", "other": "another question's answer"}
AGAIN = "of two passes"


class Panel(NamedTuple):
    """The answering model, the judge, and the number of questions."""

    llm: str  # a name for `models.connect`
    judge: str
    questions: int  # the first of seed 0's evaluation questions, with those without gold turns, without abstentions


class Said(NamedTuple):
    """Content of a reply."""

    value: object  # the answer (str) or the verdict (bool); None if it cannot be read
    refused: bool = False


class Graded(NamedTuple):
    """Answers of one system to the questions of a panel, and the verdicts on them."""

    answers: list  # of Said
    verdicts: list  # of Said


def subset(setting, number):
    """Numbers of a panel's questions, `[n]`: a random part, since seed 0 draws its evaluation questions."""
    return _split(setting)[1][_places(setting, number)]


def _split(setting):
    return settings.split([query.scope for query in settings.benchmark(setting.dataset).asked], setting, 0)


def _places(setting, number):
    """Places of a panel's questions among seed 0's evaluation questions."""
    asked = settings.benchmark(setting.dataset).asked
    return np.flatnonzero([not asked[at].abstention for at in _split(setting)[1]])[:number]


def questions_of(panel, setting):
    """Questions of a panel, in order."""
    asked = settings.benchmark(setting.dataset).asked
    return [asked[number] for number in subset(setting, panel.questions)]


def slate_texts(setting, numbers, slates):
    """Memories of the slates `[n, s]` of questions `[n]` as the model reads them, each after its session's date.

    Retrieval does not see the dates; without them the model could not resolve expressions such as "yesterday". For the
    same reason a question follows its date, where it has one, for the model and for the judge.
    """
    index = settings.candidates_of(setting, Config().depth).index.numpy()
    memories = settings.benchmark(setting.dataset, setting.captions, setting.dates).memories
    slates = [[memories[row] for row in rows] for rows in np.take_along_axis(index[numbers], slates, 1)]
    return [[one.text if setting.dates else dated(one) for one in slate] for slate in slates]


def dated(entry):
    """Text of a memory or a question after its date."""
    return f"[{entry.date}] {entry.text}" if entry.date else entry.text


def generate(panel, setting, slates):
    """Answers to a panel's questions from the slates `[n, s]` of each system, by system; all are asked at once."""
    client, questions, numbers = connect(panel.llm), questions_of(panel, setting), subset(setting, panel.questions)
    texts = [read for slate in slates.values() for read in slate_texts(setting, numbers, slate)]
    given = _paired(questions * len(slates), texts)
    asked = [Request(prompts.answer_prompt(dated(one), read), reply_tokens(panel.llm)) for one, read in given]
    replies = client.ask(asked)
    said = [_said(reply, parsing.read_answer, [dated(one), *read]) for reply, (one, read) in _paired(replies, given)]
    if client.estimating:  # the judge's usage is estimated too, on answers of about the right length
        said = [Said(one.answer) for one, _ in given]
    return {name: said[at * len(questions) :][: len(questions)] for at, name in enumerate(slates)}


def verdicts(panel, questions, answers, sample=0):
    """Verdicts on answers, one a question; unreadable answers get none. Another `sample` is a second pass."""
    client, found = connect(panel.judge), list(answers)
    given = {at: (dated(one), one.answer, said.value) for at, (one, said) in enumerate(_paired(questions, answers))}
    given = {at: texts for at, texts in given.items() if texts[-1] is not None}
    tokens = reply_tokens(panel.judge)
    replies = client.ask([Request(prompts.judge_prompt(*one), tokens, sample=sample) for one in given.values()])
    for (at, texts), reply in _paired(given.items(), replies):
        found[at] = _said(reply, parsing.read_verdict, texts)
    return found


def _said(reply, read, given):
    return Said(reply.read(read, given), reply.status == "refused")


def _paired(*sequences):
    return list(zip(*sequences, strict=True))


def graded(panel, setting, slates):
    """Answers and verdicts of each system and of the constant answer that does best on the training questions."""
    said, asked = generate(panel, setting, slates), settings.benchmark(setting.dataset).asked
    learned = [asked[number].answer for number in _split(setting)[0] if not asked[number].abstention]
    constant = grading.constant_answer(learned)
    said[CONSTANT] = [Said(constant)] * len(subset(setting, panel.questions))
    found = iter(verdicts(panel, questions_of(panel, setting) * len(said), [*chain(*said.values())]))
    return {name: Graded(one, [next(found) for _ in one]) for name, one in said.items()}


def scores(panel, setting, given):
    """F1 and J of graded answers by metric and system, `[1, n]` between 0 and 1; NaN where a reply cannot be read."""
    golds = [one.answer for one in questions_of(panel, setting)]
    f1 = {name: grading.f1([said.value for said in one.answers], golds)[None] for name, one in given.items()}
    j = {name: grading.judged([said.value for said in one.verdicts])[None] for name, one in given.items()}
    return {"f1": f1, "j": j}


def answer_rows(panel, setting, reached, baseline, names=None, categories=None, **keys):
    """Rows of F1 and J of several systems, each compared with the same baseline on the same questions.

    Parameters
    ----------
    panel : Panel
    setting : settings.Setting
    reached : dict of str to runs.Answers
        Retrieved slates of each system; those of seed 0 are read.
    baseline : str
    names : sequence of str, optional
        Systems that get rows; default: all, and the constant answer.
    categories : sequence of str, optional
        Question types that get rows of their own, with the key `category`, beside those of all.
    **keys
        Further keys of the rows.

    Returns
    -------
    list of dict
        With the models' names as `llm` and `judge`, and the replies that count nowhere as `unparsed` and `refused`.
        Without a model, or if nothing can be read, rows without a value, with the reason.
    """
    names, types = list(names or (*reached, CONSTANT)), ["all types", *categories] if categories else [None]
    about = {"f1": {"llm": panel.llm}, "j": {"llm": panel.llm, "judge": panel.judge}}
    of_type = {kind: {"category": kind} if kind else {} for kind in types}
    places = _places(setting, panel.questions)
    passed_over = int(places.max(initial=-1)) + 1 - len(places)
    try:
        given = graded(panel, setting, {name: one.slates[0, places] for name, one in reached.items()})
    except NoModel as error:
        wanted = product(METRICS, types, names)
        return [dash(setting, name, metric, error, **about[metric], **of_type[t], **keys) for metric, t, name in wanted]
    asked = questions_of(panel, setting)
    made, queries = [], subset(setting, panel.questions)[None]
    for metric, values in scores(panel, setting, given).items():
        for kind, name in product(types, names):
            counts = np.array([[kind in (None, "all types", one.category) for one in asked]])
            part = {one: np.where(counts, values[one], np.nan) for one in (name, baseline)}
            replies = given[name].verdicts if metric == "j" else given[name].answers
            lost = [said for said, here in _paired(replies, counts[0]) if here and said.value is None]
            refused = sum(said.refused for said in lost)
            told = {**about[metric], **of_type[kind], **keys, "unparsed": len(lost) - refused, "refused": refused}
            told["abstentions"] = passed_over or None
            words = [len(said.value.split()) for said, here in _paired(given[name].answers, counts[0])
                     if here and said.value is not None]  # fmt: skip
            told["answer_words"] = round(sum(words) / len(words), 1) if words and metric == "j" else None
            against = None if name == baseline else part[baseline]
            made.append(reply_row(setting, name, metric, part[name], np.where(counts, queries, -1), against, **told))
    return made


def reply_row(setting, variant, metric, values, queries, baseline=None, **keys):
    """One row of values `[1, n]` from replies, NaN where one cannot be read; without a value if none can.

    It varies between machines, which round a model's numbers differently.
    """
    if np.isnan(values).all():
        return dash(setting, variant, metric, f"none of {(queries >= 0).sum()} replies could be read", **keys)
    if baseline is not None and np.isnan(values - baseline).all():
        baseline = None
    alone = setting.model_copy(update={"seeds": 1})
    (made,) = comparisons.rows(alone, variant, values[None], queries, baseline, measures=(metric,), **keys, varies=True)
    return {**made, "excluded": None}  # `unparsed` and `refused` count these questions


def dash(setting, variant, metric, reason, **keys):
    """A row without a value, with the reason: of an error its first sentence, the rest holds counts and places."""
    where = {"dataset": setting.dataset, "encoder": setting.encoder, "split": setting.split, "variant": variant}
    return {
        **where,
        "metric": metric,
        **keys,
        "measured": None,
        "reason": str(reason).partition(". ")[0],
        "varies": True,
    }


def judge_rows(panel, setting, reached, baseline, **keys):
    """Rows on the judge itself: how often it is right on planted answers, and how often a second pass differs.

    Right are the verdict Yes on a question's gold answer, as it is or in a sentence, and No on the answer to another
    question (`grading.planted_answers`). Flips are verdicts on the baseline's answers that a second pass changes.

    Parameters
    ----------
    panel, setting, reached, baseline
        As in `answer_rows`.

    Returns
    -------
    list of dict
        With the key `candidate`: the answer that was judged.
    """
    questions, queries = questions_of(panel, setting), subset(setting, panel.questions)[None]
    golds, categories = [one.answer for one in questions], [one.category for one in questions]
    tried = grading.planted_answers(golds, categories, np.random.default_rng(0))
    told = {"judge": panel.judge, **keys}
    try:
        found = verdicts(panel, [questions[one.question] for one in tried], [Said(one.candidate) for one in tried])
        said = generate(panel, setting, {baseline: reached[baseline].slates[0, _places(setting, panel.questions)]})[
            baseline
        ]
        passes = [[one.value for one in verdicts(panel, questions, said, sample)] for sample in (0, 1)]
    except NoModel as error:
        right = [dash(setting, None, "judge_right", error, candidate=name, **told) for name in JUDGED.values()]
        return [*right, dash(setting, None, "judge_flips", error, candidate=AGAIN, llm=panel.llm, **told)]
    made = []
    for kind, name in JUDGED.items():
        values, place = np.full(queries.shape, np.nan), np.full(queries.shape, -1)
        for one, said in _paired(tried, found):
            if one.kind == kind:
                place[0, one.question] = queries[0, one.question]
                values[0, one.question] = np.nan if said.value is None else said.value == one.right
        lost = {"unparsed": int((np.isnan(values) & (place >= 0)).sum())}
        made.append(reply_row(setting, None, "judge_right", values, place, candidate=name, **told, **lost))
    flips = grading.flips(*passes)[None]
    told |= {"candidate": AGAIN, "llm": panel.llm, "unparsed": int(np.isnan(flips).sum())}
    return [*made, reply_row(setting, None, "judge_flips", flips, queries, **told)]
