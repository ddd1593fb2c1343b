"""Toy benchmark: synthetic dialogues generated from a seed, for smoke runs, tests and machines without a network.

Two friends chat over several sessions. Questions are worded formally ("occupation"), answers colloquially ("I clock in
at the bakery at six"), and other turns contain the question's word without an answer ("my crossword wanted a word for
occupation"). The shared word misleads a frozen encoder; the mismatch is the same in all conversations, so that an
adapter can learn it. No result on this benchmark carries over to a real one.
"""

from dataclasses import dataclass
from datetime import date, timedelta
from importlib import resources
from itertools import groupby

import numpy as np

from earlib import paths
from earlib.data.benchmarks import ADVERSARIAL, Benchmark, Memory, Query, turn_text

SESSIONS = 5  # per conversation
DISTRACTION = 2  # words per session that occur without an answer
# For each topic of a conversation, which friend tells it in turn: one repeatedly, both, or one only.
TELLERS = 2 * [(0, 0, 0)] + 3 * [(0, 0)] + 6 * [(0, 1)] + 3 * [(0,)]
WORDING = paths.read_yaml(resources.files("earlib.data").joinpath("toy.yaml"))


@dataclass
class _Fact:
    """A detail that one friend tells; `day` and `turn` are set when it is told."""

    topic: dict
    teller: int
    detail: str
    session: int
    day: str = ""
    turn: str = ""


def read(captions=True, dates=False, seed=0, conversations=6):
    """Generate the benchmark; a conversation has about 55 turns, 35 observations and 35 questions with gold turns."""
    memories, queries = [], []
    for number, stream in enumerate(np.random.SeedSequence(seed).spawn(conversations), start=1):
        scope, generator = f"toy-{number}", np.random.default_rng(stream)
        friends = _pick(generator, WORDING["people"], 2)
        facts = _facts(generator)
        memories += _memories(scope, generator, friends, facts, captions, dates)
        queries += _queries(scope, generator, friends, facts)
    return Benchmark("Toy (made by the package)", tuple(memories), tuple(queries))


def _pick(generator, options, count):
    return [options[index] for index in generator.permutation(len(options))[:count]]


def _one(generator, options):
    return options[generator.integers(len(options))]


def _printed(day):
    return f"{day.day} {day:%B %Y}"


def _facts(generator):
    """Facts of a conversation, topic by topic."""
    facts = []
    for topic, others in zip(_pick(generator, WORDING["topics"], len(TELLERS)), TELLERS, strict=True):
        first = int(generator.integers(2))
        tellers = [first ^ other for other in others]
        details = _pick(generator, topic["details"], len(tellers))
        sessions = sorted(_pick(generator, range(SESSIONS), len(tellers)))
        facts += [_Fact(topic, *told) for told in zip(tellers, details, sessions, strict=True)]
    return facts


def _memories(scope, generator, friends, facts, captions, dates):
    """Turns and observations of a conversation, session by session."""
    day, words, memories = date(2024, 1, 1), sorted({fact.topic["word"] for fact in facts}), []
    for session in range(SESSIONS):
        day += timedelta(days=int(generator.integers(6, 25)))
        turns = _turns(generator, friends, [fact for fact in facts if fact.session == session], words, day)
        name, printed, observations = f"S{session + 1}", _printed(day), []
        for number, (speaker, said, observed, fact) in enumerate(turns, start=1):
            (friend, poss), turn = friends[speaker], f"{scope}/D{session + 1}:{number}"
            caption = _one(generator, WORDING["captions"]) if generator.random() < 0.1 else None
            text = turn_text(friend, said, caption if captions else None, printed if dates else None)
            memories.append(Memory(turn, scope, "dialogue", name, printed, text))
            if fact:
                fact.turn = turn
            if observed:
                text = _sentence(observed.replace("{name}", friend).replace("{poss}", poss))
                identity = f"{scope}/{name}/O/{friend}/{len(observations)}"
                observations.append(Memory(identity, scope, "observation", name, printed, text, (turn,)))
        memories += observations
    return memories


def _turns(generator, friends, facts, words, day):
    """Alternating turns of a session: speaker, text, observation and fact; a distractor and small talk have no fact."""
    waiting = ([], [])  # lines of each friend

    def tell(templates, detail, fact=None):
        ago = int(generator.integers(len(WORDING["when"])))
        said = _sentence(_one(generator, WORDING["leads"]) + templates["said"].format(detail))
        if fact:
            fact.day = _printed(day - timedelta(days=ago))
        teller = fact.teller if fact else generator.integers(2)
        waiting[teller].append((f"{said} {WORDING['when'][ago]}", templates["observed"].replace("{}", detail), fact))

    for fact in facts:
        tell(fact.topic, fact.detail, fact)
    for word in _pick(generator, words, DISTRACTION):
        tell(_one(generator, WORDING["distractors"]), word)
    for lines in waiting:
        generator.shuffle(lines)
    speaker = int(generator.integers(2))
    turns = [(speaker, f"Hey {friends[1 - speaker][0]}, good to hear from you!", None, None)]
    while any(waiting):
        speaker = 1 - speaker
        small_talk = (_one(generator, WORDING["small_talk"]), None, None)
        turns.append((speaker, *(waiting[speaker].pop() if waiting[speaker] else small_talk)))
    return [*turns, (1 - speaker, "Let's talk again soon, bye!", None, None)]


def _sentence(text):
    return f"{text[0].upper()}{text[1:]}."


def _queries(scope, generator, friends, facts):
    """Questions of a conversation, in random order."""
    asked = []  # (category, friend, word, answer, gold facts)
    for word, told in groupby(facts, lambda fact: fact.topic["word"]):
        told = list(told)
        if len({fact.teller for fact in told}) < len(told):
            asked.append(("multi-hop", told[0].teller, word, ", ".join(fact.detail for fact in told), told))
            continue
        for fact in told:
            asked.append(("single-hop", fact.teller, word, fact.detail, [fact]))
            like = ("open-domain", f"Something that goes with: {fact.detail}")
            category, answer = ("temporal", fact.day) if len(asked) % 3 else like  # two in three
            asked.append((category, fact.teller, word, answer, [fact]))
        if len(told) == 1:  # the other friend never spoke of it; the gold turn is the misleading one
            asked.append((ADVERSARIAL, 1 - told[0].teller, word, "", told))
    known = {fact.topic["word"] for fact in facts}
    unknown = _one(generator, [topic["word"] for topic in WORDING["topics"] if topic["word"] not in known])
    asked.append(("open-domain", int(generator.integers(2)), unknown, "Nothing is known", []))
    queries, templates = [], WORDING["questions"]
    for number, (category, friend, word, answer, gold) in enumerate(_pick(generator, asked, len(asked))):
        template = _one(generator, templates.get(category, templates["single-hop"]))
        text = template.format(name=friends[friend][0], poss=friends[friend][1], word=word)
        turns = tuple(fact.turn for fact in gold)
        queries.append(Query(f"{scope}/Q{number}", scope, text, answer, category, turns))
    return queries
