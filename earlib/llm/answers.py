"""Answers to questions by a language model that reads a slate, and a judge's verdicts on them: the paper's F1 and J.

They are means over all seeds and over the questions that retrieval is measured on, those with a gold turn: the paper's
values fit these denominators (`one_held_out_set` in earlib/paper/readings.yaml). Abstention questions have none, and
the paper's rubric does not grade them. Controls beside them: a constant answer, the judge's verdicts on planted
answers, without which its J does not count, and a second pass of the judge.
"""

from itertools import product
from typing import NamedTuple

import numpy as np

from earlib.core.config import Config
from earlib.experiments import comparisons, settings
from earlib.llm import NoModel, Request, grading, parsing, prompts
from earlib.llm.models import connect, reply_tokens, row_name

CONSTANT = "constant_answer"
METRICS = ("f1", "j")
JUDGED = {"gold": "the gold answer", "reworded": "the gold answer in a sentence", "other": "another question's answer"}
AGAIN = "of two passes"
KINDS = {True: "right", False: "wrong"}
NO_QUESTION = "a seed evaluates no question with gold memories"
FIT = 0.8  # of planted right answers, and of planted wrong ones, on which a judge whose J counts is right


class Panel(NamedTuple):
    """The answering model, the judge, and the number of questions."""

    llm: str  # a name for `models.connect`
    judge: str
    questions: int = 0  # the first of each seed's evaluation questions that have a gold turn; 0: all of them
    dates: bool = True  # memories and questions are read after their dates


class Said(NamedTuple):
    """Content of a reply."""

    value: object  # the answer (str) or the verdict (bool); None if it cannot be read
    refused: bool = False


class Asked(NamedTuple):
    """Questions that are put to a model, seed by seed; equal questions about equal slates are asked once."""

    setting: object
    place: np.ndarray  # bool [R, E], which of the evaluation questions
    numbers: np.ndarray  # [n]
    seeds: np.ndarray  # [n]

    @property
    def questions(self):
        """The `n` questions."""
        asked = settings.benchmark(self.setting.dataset).asked
        return [asked[number] for number in self.numbers]

    def spread(self, values):
        """Values of the questions, `[n]`, in their places, `[R, E]`; NaN elsewhere."""
        wide = np.full(self.place.shape, np.nan)
        wide[self.place] = values
        return wide


def asked_of(panel, setting, queries):
    """The questions of a panel among the evaluation questions `[R, E]` of a setting."""
    gold = np.array([bool(query.gold) for query in settings.benchmark(setting.dataset).asked])
    place = gold[queries] & (queries >= 0)
    if panel.questions:
        place &= place.cumsum(1) <= panel.questions
    return Asked(setting, place, queries[place], np.nonzero(place)[0])


def subset(setting, number):
    """Numbers of the first questions with a gold turn that seed 0 evaluates, `[n]`; all of them for 0."""
    return asked_of(Panel("", "", number), setting, _split(setting, 0)[1][None]).numbers


def _split(setting, seed):
    return settings.split([query.scope for query in settings.benchmark(setting.dataset).asked], setting, seed)


def slate_texts(setting, numbers, slates, dates=True):
    """Memories of the slates `[n, s]` of questions `[n]` as a model reads them, each after its session's date.

    Retrieval does not see the dates; without them the model could not resolve expressions such as "yesterday". For the
    same reason a question follows its date, where it has one, for the model and for the judge.
    """
    index = settings.candidates_of(setting, Config().depth).index.numpy()
    memories = settings.benchmark(setting.dataset, setting.captions, setting.dates).memories
    slates = [[memories[row] for row in rows] for rows in np.take_along_axis(index[numbers], slates, 1)]
    return [[dated(one, dates and not setting.dates) for one in slate] for slate in slates]


def dated(entry, dates=True):
    """Text of a memory or a question after its date."""
    return f"[{entry.date}] {entry.text}" if entry.date and dates else entry.text


def generate(panel, asked, slates):
    """Answers to questions from the slates `[n, s]` of each system, by system; all are asked at once."""
    client, questions = connect(panel.llm), asked.questions
    texts = [read for one in slates.values() for read in slate_texts(asked.setting, asked.numbers, one, panel.dates)]
    given = _paired([dated(one, panel.dates) for one in questions] * len(slates), texts)
    wanted = [Request(prompts.answer_prompt(*one), reply_tokens(panel.llm)) for one in given]
    replies = client.ask(wanted)
    said = [_said(reply, parsing.read_answer, [one, *read]) for reply, (one, read) in _paired(replies, given)]
    if client.estimating:  # the judge's usage is estimated too, on answers of about the right length
        said = [Said(one.answer) for one in questions] * len(slates)
    return {name: said[at * len(questions) :][: len(questions)] for at, name in enumerate(slates)}


def verdicts(panel, questions, answers, sample=0):
    """Verdicts on answers, one a question; unreadable answers get none. Another `sample` is a second pass."""
    tokens, found = reply_tokens(panel.judge), list(answers)
    pairs = [(at, *pair) for at, pair in enumerate(_paired(questions, answers)) if pair[1].value is not None]
    given = {at: (dated(one, panel.dates), one.answer, said.value) for at, one, said in pairs}
    asked = [Request(prompts.judge_prompt(*texts), tokens, sample=sample) for texts in given.values()]
    for (at, texts), reply in _paired(given.items(), connect(panel.judge).ask(asked)):
        found[at] = _said(reply, parsing.read_verdict, texts)
    return found


def _said(reply, read, given):
    return Said(reply.read(read, given), reply.status == "refused")


def _paired(*sequences):
    return list(zip(*sequences, strict=True))


def _constant(setting, seed):
    """The constant answer that does best on a seed's training questions."""
    known = settings.benchmark(setting.dataset).asked
    return grading.constant_answer([known[at].answer for at in _split(setting, seed)[0] if not known[at].abstention])


def answer_rows(panel, setting, reached, baseline, categories=None, **keys):
    """Rows of F1 and J of several systems, each compared with the same baseline on the same questions.

    Parameters
    ----------
    panel : Panel
    setting : settings.Setting
    reached : dict of str to runs.Answers
        Retrieved slates of each system.
    baseline : str
    categories : sequence of str, optional
        Question types that get rows of their own, with the key `category`, beside those of all.
    **keys
        Further keys of the rows.

    Returns
    -------
    list of dict
        With the models' names as `llm` and `judge`, and the replies that count nowhere as `unparsed` and `refused`.
        Without a model, if nothing can be read, or for a judge that is not `FIT`, rows with a reason and no value.
    """
    queries = reached[baseline].queries
    asked = asked_of(panel, setting, queries)
    names, types = [*reached, CONSTANT], ["all types", *categories] if categories else [None]
    about = {"f1": {"llm": row_name(panel.llm)}, "j": {"llm": row_name(panel.llm), "judge": row_name(panel.judge)}}
    said, judged, failed = _said_and_judged(panel, setting, asked, reached)
    abstains = np.array([query.abstention for query in settings.benchmark(setting.dataset).asked])
    abstentions = int((abstains[queries] & (queries >= 0)).sum(1).max())  # the most of a seed
    made, kinds = [], np.array([one.category for one in asked.questions])
    for metric, kind, name in product(METRICS, types, names):
        told = about[metric] | ({"category": kind} if kind else {}) | keys
        if metric in failed:
            made.append(dash(setting, name, metric, failed[metric], **told))
            continue
        counts = np.full(len(kinds), True) if kind in (None, "all types") else kinds == kind
        replies = said[name] if metric == "f1" else judged[name]
        lost = [one.refused for one, here in _paired(replies, counts) if here and one.value is None]
        told |= {"unparsed": lost.count(False), "refused": lost.count(True), "abstentions": abstentions or None}
        words = [len(one.value.split()) for one, here in _paired(said[name], counts) if here and one.value is not None]
        told["answer_words"] = round(sum(words) / len(words), 1) if words and metric == "j" else None
        scores = {one: _scores(metric, asked, said[one], judged.get(one), counts) for one in {name, baseline}}
        against = None if name == baseline else scores[baseline]
        asked_here = np.where(asked.spread(counts) == 1, queries, -1)
        made.append(reply_row(setting, name, metric, scores[name], asked_here, against, **told))
    return made


def _said_and_judged(panel, setting, asked, reached):
    """Answers and verdicts by system, the constant answer's too, and by metric the reason why there are none."""
    said, judged, failed = {}, {}, {}
    try:
        said = generate(panel, asked, {name: one.slates[asked.place] for name, one in reached.items()})
        constants = [_constant(setting, seed) for seed in range(setting.seeds)]
        said[CONSTANT] = [Said(constants[seed]) for seed in asked.seeds]
    except NoModel as error:
        return said, judged, dict.fromkeys(METRICS, error)
    try:
        found = iter(verdicts(panel, asked.questions * len(said), [one for of in said.values() for one in of]))
        judged = {name: [next(found) for _ in of] for name, of in said.items()}
        if reason := unfit(panel, setting):
            failed["j"] = reason
    except NoModel as error:
        failed["j"] = error
    return said, judged, failed


def _scores(metric, asked, said, judged, counts):
    """F1 or J of the questions that count, `[R, E]` between 0 and 1; NaN where a reply cannot be read."""
    if metric == "f1":
        values = grading.f1([one.value for one in said], [one.answer for one in asked.questions])
    else:
        values = grading.judged([one.value for one in judged])
    return asked.spread(np.where(counts, values, np.nan))


def reply_row(setting, variant, metric, values, queries, baseline=None, **keys):
    """One row of values `[R, E]` from replies, NaN where one cannot be read; without a value if a seed has none.

    It varies between machines, which round a model's numbers differently.
    """
    unread = np.isnan(values).all(1)
    if unread.any():
        seed, asked = unread.argmax(), (queries[unread.argmax()] >= 0).sum()
        reason = f"none of {asked} replies of seed {seed} could be read"
        return dash(setting, variant, metric, reason if asked else NO_QUESTION, **keys)
    if baseline is not None and np.isnan(values - baseline).all(1).any():
        baseline = None
    keys |= {"measures": (metric,), "varies": True}
    (made,) = comparisons.rows(setting, variant, values[None], queries, baseline, **keys)
    return {**made, "excluded": None}  # `unparsed` and `refused` count these questions


def dash(setting, variant, metric, reason, **keys):
    """A row without a value, with the reason: of an error its first sentence, the rest holds counts and places."""
    made = {"dataset": setting.dataset, "encoder": setting.encoder, "split": setting.split, "variant": variant}
    return made | {"metric": metric, **keys, "measured": None, "reason": str(reason).partition(". ")[0], "varies": True}


def _planted(panel, setting):
    """Planted answers to seed 0's questions, and the judge's verdicts on them."""
    known = settings.benchmark(setting.dataset).asked
    questions = [known[number] for number in subset(setting, panel.questions)]
    golds, categories = [one.answer for one in questions], [one.category for one in questions]
    tried = grading.planted_answers(golds, categories, np.random.default_rng(0))
    found = verdicts(panel, [questions[one.question] for one in tried], [Said(one.candidate) for one in tried])
    return tried, found


def unfit(panel, setting):
    """Reason why a judge's verdicts do not count: it fails on planted answers; "" if it is right on `FIT` of each kind.

    A verdict that cannot be read is not right.
    """
    tried, found = _planted(panel, setting)
    if connect(panel.judge).estimating:
        return ""
    right = {kind: [] for kind in (True, False)}
    for one, said in _paired(tried, found):
        right[one.right].append(said.value == one.right)
    shares = {kind: sum(of) / len(of) for kind, of in right.items() if of}
    if all(share >= FIT for share in shares.values()):
        return ""
    told = " and ".join(f"{100 * shares[kind]:.0f} % of planted {KINDS[kind]} answers" for kind in shares)
    return f"the judge is right on {told}, less than {100 * FIT:.0f} %"


def judge_rows(panel, setting, reached, baseline, **keys):
    """Rows on the judge itself: how often it is right on planted answers, and how often a second pass differs.

    Right are the verdict Yes on a question's gold answer, as it is or in a sentence, and No on the answer to another
    question (`grading.planted_answers`). Flips are verdicts on the baseline's answers that a second pass changes. Both
    are of seed 0's questions.

    Parameters
    ----------
    panel, setting, reached, baseline
        As in `answer_rows`.

    Returns
    -------
    list of dict
        With the key `candidate`: the answer that was judged.
    """
    told = {"judge": row_name(panel.judge), **keys}
    asked = asked_of(panel, setting, reached[baseline].queries[:1])
    queries = asked.numbers[None]
    try:
        tried, found = _planted(panel, setting)
        said = generate(panel, asked, {baseline: reached[baseline].slates[:1][asked.place]})[baseline]
        passes = [[one.value for one in verdicts(panel, asked.questions, said, sample)] for sample in (0, 1)]
    except NoModel as error:
        right = [dash(setting, None, "judge_right", error, candidate=name, **told) for name in JUDGED.values()]
        return [*right, dash(setting, None, "judge_flips", error, candidate=AGAIN, llm=row_name(panel.llm), **told)]
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
    told |= {"candidate": AGAIN, "llm": row_name(panel.llm), "unparsed": int(np.isnan(flips).sum())}
    return [*made, reply_row(setting, None, "judge_flips", flips, queries, **told)]
