"""Toy: dialogues that the package makes itself from a seed, for smoke runs, tests and machines without network.

Two friends chat over several sessions. Questions are worded formally ("occupation"), what was said is not ("I clock in
at the bakery at six"), and other turns hold the question's own word to no purpose ("my crossword wanted a word for
occupation"). A frozen encoder is led astray by the shared word; since the mismatch is the same in all conversations,
an adapter can learn it. Nothing measured here says anything about a real benchmark.
"""

from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np

from earlib.data.benchmarks import ADVERSARIAL, Benchmark, Memory, Query, turn_text

NAME = "Toy (made by the package)"
SESSIONS = 5  # a conversation
DISTRACTION = 2  # words that come up to no purpose in each session
TWICE, BOTH, ALONE = 5, 6, 3  # topics of a conversation: told repeatedly by one friend, by each, by one only

_PEOPLE = (
    ("Nora", "her"), ("Felix", "his"), ("Ines", "her"), ("Oskar", "his"), ("Priya", "her"), ("Tom", "his"),
    ("Leila", "her"), ("Mateo", "his"), ("Ruth", "her"), ("Kwame", "his"), ("Hanna", "her"), ("Yusuf", "his"),
)  # fmt: skip

# The question's word; what the friend says and what is observed of it, {} the detail; details to choose from.
_TOPICS = (
    ("occupation", "I clock in {} at six now, the boss is a dragon", "{name} clocks in {} at six",
     "at the bakery|on a school bus|at the flower stall|in a bike shop|at the vet's desk"),
    ("residence", "I crash {} now, third floor and no lift", "{name} crashes {}, on the third floor without a lift",
     "by the harbour|over the fish shop|behind the station|on Mill Lane|near the old brewery"),
    ("automobile", "{} only starts on the third try, I love the old banger", "{name} drives an old banger: {}",
     "the green hatchback|the dented van|the red two-seater|the rusty estate|Grandad's saloon"),
    ("spouse", "{} and I said our vows barefoot on the beach", "{name} and {} said their vows on the beach",
     "Sam|Robin|Alex|Charlie|Jamie"),
    ("sibling", "{} and I still fight over who had the top bunk", "{name} and {} still fight over the top bunk",
     "Maya|Ben|Lucy|Victor|Daniel"),
    ("canine", "{} fetched a stick and dragged me through the mud, tail wagging",
     "{} drags {name} through the mud, tail wagging",
     "Biscuit|Rufus|Pepper|Waffles|Bruno"),
    ("feline", "{} purred on my keyboard all morning", "{} purrs on {name}'s keyboard",
     "Mittens|Salem|Olive|Smokey|Tiger"),
    ("beverage", "I can't face the morning without {}", "{name} can't face the morning without {}",
     "a mint tea|a double espresso|hot cocoa|ginger lemonade|a flat white"),
    ("footwear", "I finally broke in {}, blisters and all", "{name} got blisters from breaking in {}",
     "the leather boots|the white trainers|those red clogs|the hiking pair|the suede loafers"),
    ("ailment", "my {} is playing up again when I climb stairs", "{name}'s {} plays up on the stairs",
     "left knee|lower back|right hip|ankle|shoulder"),
    ("physician", "{} made me say aah and told me to take it easy", "{} told {name} to take it easy",
     "Dr Okafor|Dr Lind|Dr Moreno|Dr Patel|Dr Weiss"),
    ("allergy", "one bite of {} and I puff up like a balloon", "{name} puffs up after one bite of {}",
     "peanut|shrimp|kiwi|celery|walnut"),
    ("vacation", "bags packed and sun cream in, I'm off to {}", "{name} packed {poss} bags for {}",
     "Crete|Lisbon|Iceland|the Alps|Sardinia"),
    ("instrument", "the neighbours bang on the wall whenever I practise {}",
     "{name} practises {} and the neighbours bang on the wall",
     "the cello|the trumpet|the drums|the banjo|the oboe"),
    ("athletics", "I came home drenched and aching after {}", "{name} came home aching after {}",
     "badminton|rowing|bouldering|squash|hurdles"),
    ("literature", "I turned pages till two, I just couldn't put {} down", "{name} couldn't put {} down",
     "The Salt Road|Winter Ferry|A Spare Key|The Last Orchard|Glass Hill"),
    ("cinema", "{} had me reaching for the tissues before the credits", "{name} cried at {}",
     "Blue Lantern|The Long Pier|Seven Sundays|Paper Moths|Northbound"),
    ("cuisine", "I burned my tongue on {} and went back for more", "{name} went back for more {}",
     "ramen|goulash|paella|dumplings|lamb curry"),
    ("confectionery", "I licked the plate clean after {}", "{name} licked the plate clean after {}",
     "the lemon tart|the tiramisu|the plum cake|the baklava|the pavlova"),
    ("education", "I'm cramming {} every night, the exam is in May", "{name} crams {} for an exam",
     "anatomy|bookkeeping|art history|statistics|contract law"),
    ("linguistics", "I can order coffee in {} now, but my accent is awful", "{name} can order coffee in {}",
     "Portuguese|Korean|Polish|Greek|Swahili"),
    ("debt", "I still owe {} and it keeps me up at night", "{name} still owes {}",
     "the uncle a thousand|the bank for the roof|Pat two months' rent|the dentist|the cousin fifty"),
    ("savings", "the coins in my jar are meant for {}", "{name} keeps coins in a jar for {}",
     "a tandem|a kiln|a canoe|a telescope|a piano"),
    ("garment", "I went out in {} and my mother didn't even laugh", "{name} went out in {}",
     "the yellow raincoat|the tweed jacket|the velvet dress|the striped jumper|the silk scarf"),
    ("jewellery", "I never take {} off, not even in the shower", "{name} never takes {} off",
     "the silver ring|Gran's locket|the jade bracelet|the pearl studs|the thin gold chain"),
    ("horticulture", "{} came up at last, I must have green thumbs", "{name} has green thumbs: {} came up",
     "the tomatoes|the tulips|the runner beans|the sweet peas|the pumpkins"),
    ("appliance", "{} died on me with a bang and a puff of smoke", "{} died on {name} in a puff of smoke",
     "the toaster|the kettle|the dishwasher|the blender|the vacuum"),
    ("furniture", "I flopped onto {} and a spring poked me", "a spring poked {name} on {}",
     "the blue sofa|the wicker chair|the old futon|the corner bench|the armchair"),
    ("philanthropy", "every Saturday I lend a hand at {}", "{name} lends a hand at {} on Saturdays",
     "the soup kitchen|the animal shelter|the food bank|the repair cafe|the hospice"),
    ("phobia", "my knees turn to jelly when I see {}", "{name}'s knees turn to jelly at {}",
     "spiders|a needle|a ladder|a clown|a snake"),
    ("superstition", "I won't leave home without {}, call me silly", "{name} won't leave home without {}",
     "a rabbit's foot|the lucky coin|a red thread|a four-leaf clover|an acorn"),
    ("aspiration", "mark my words, one day I'll {}", "{name} will {} one day",
     "open a tea room|sail to Norway|write a musical|run a vineyard|build a cabin"),
    ("artwork", "there is paint on the carpet from {}", "{name} got paint on the carpet from {}",
     "the harbour scene|the self-portrait|the poppies|the big mural|the bowl of pears"),
    ("collection", "my shelves are bursting with {}, I just can't stop", "{name}'s shelves are bursting with {}",
     "matchboxes|snow globes|old maps|thimbles|vinyl records"),
    ("mentor", "{} took me under her wing and showed me the ropes", "{} took {name} under her wing",
     "Mrs Adler|Mrs Quinn|Aunt Vera|Mrs Haddad|Mrs Sato"),
    ("colleague", "{} and I share a desk, a kettle and all the gossip", "{name} shares a desk and a kettle with {}",
     "Derek|Fatima|Gus|Wendy|Marlon"),
    ("landlord", "{} put my rent up and still won't fix the radiator", "{} put {name}'s rent up",
     "Mr Crane|Mr Dupont|Mr Novak|Mr Bello|Mr Finch"),
    ("festivity", "we blew up forty balloons for {}", "{name} blew up balloons for {}",
     "the sixtieth|the christening|the housewarming|the farewell|the silver wedding"),
    ("slumber", "I only nod off with {} these days", "{name} only nods off with {}",
     "rain sounds on|two pillows|the window open|a podcast|a hot-water bottle"),
    ("commute", "I squeeze in with everyone at dawn on {}", "{name} squeezes in at dawn on {}",
     "the number nine|the river ferry|the slow train|the tram|the night bus"),
)  # fmt: skip

# What holds the word to no purpose, as said and as observed.
_DISTRACTORS = (
    ("my crossword wanted a word for {} and I sat there for ages", "{name} did a crossword with {} in it"),
    ("there was a quiz about {} on the telly and I switched it off", "{name} switched off a quiz about {}"),
    ("the library has a whole shelf on {} now, dusty as ever", "{name} saw a dusty shelf on {} in the library"),
    ("my nephew asked me how to spell {}, twice", "{name}'s nephew can't spell {}"),
    ("some advert with the word {} keeps popping up on my phone", "{name} keeps seeing an advert about {}"),
    ("I got a leaflet about {} through the door, straight in the bin", "{name} threw away a leaflet about {}"),
    ("the radio was droning on about {} while I did the dishes", "{name} heard about {} on the radio"),
    ("funny how the word {} looks odd once you stare at it", "{name} finds that the word {} looks odd"),
    ("a stranger on the tram went on about {} in general, so dull", "{name} met a stranger who went on about {}"),
    ("somebody wrote {} on the whiteboard and nobody knows why", "{name} saw {} written on a whiteboard"),
)
_SMALL_TALK = (
    "Ha, that sounds just like you.", "Oh no, tell me more next time.", "The weather has been awful here.",
    "I can't believe how fast this year goes.", "You always make me laugh.", "Right, I should put the bins out.",
    "I was thinking of you the other day.", "Honestly, what a week.", "Sounds lovely, I'm a bit jealous.",
    "Hold on, someone's at the door.", "Fair enough, I would have done the same.",
)  # fmt: skip
_LEADS = ("", "", "", "By the way, ", "Oh, and ", "Well, ")
_CAPTIONS = ("a photo of a cloudy sky", "a photo of a cup on a table", "a photo of a quiet street")
_WHEN = ("That was today.", "That was yesterday.", "That was two days ago.")  # days ago: 0, 1, 2

_QUESTIONS = {
    "single-hop": (
        "What is known about {name}'s {word}?",
        "What did {name} say about {poss} {word}?",
        "Can you recall the {word} that {name} mentioned?",
        "Which details about {poss} {word} did {name} share?",
    ),
    "multi-hop": (
        "What are all the things {name} said about {poss} {word} over time?",
        "How did {name}'s {word} change between the conversations?",
    ),
    "temporal": (
        "When did {name} have something to tell about {poss} {word}?",
        "On which day was there news about {name}'s {word}?",
    ),
    "open-domain": (
        "Considering {poss} {word}, which present might suit {name}?",
        "What does {name}'s {word} suggest about {poss} character?",
    ),
}


@dataclass
class _Fact:
    """Something that one friend tells; `day` and `turn` are known once it has been told."""

    topic: tuple
    teller: int
    detail: str
    session: int
    day: date = None
    turn: str = ""


def load(captions=True, dates=False, seed=0, conversations=6):
    """Make the toy benchmark.

    Parameters
    ----------
    captions, dates : bool
        As in `earlib.data.benchmarks.load`.
    seed : int
        Same seed, same benchmark.
    conversations : int
        Each has about 55 turns, 35 observations and 35 questions with gold turns.

    Returns
    -------
    Benchmark

    Raises
    ------
    ValueError
        If `seed` is negative or `conversations` below 1.
    """
    for option, value, least in (("seed", seed, 0), ("conversations", conversations, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"toy: {option}: expected a whole number from {least} on, found {value!r}")
    memories, queries = [], []
    for number, stream in enumerate(np.random.SeedSequence(seed).spawn(conversations), start=1):
        scope, generator = f"toy-{number}", np.random.default_rng(stream)
        friends = _pick(generator, _PEOPLE, 2)
        facts = _facts(generator)
        memories += _tell(scope, generator, friends, facts, captions, dates)
        queries += _ask(scope, generator, friends, facts)
    return Benchmark(NAME, tuple(memories), tuple(queries))


def _pick(generator, options, count):
    """`count` different options, in random order."""
    return [options[index] for index in generator.permutation(len(options))[:count]]


def _one(generator, options):
    return options[generator.integers(len(options))]


def _facts(generator):
    """What will be told in a conversation: first the topics told twice or thrice, then by both, then by one."""
    facts = []
    for place, topic in enumerate(_pick(generator, _TOPICS, TWICE + BOTH + ALONE)):
        first = int(generator.integers(2))
        if place < TWICE:
            tellers = [first] * (3 if place < 2 else 2)
        else:
            tellers = [first, 1 - first] if place < TWICE + BOTH else [first]
        details = _pick(generator, topic[3].split("|"), len(tellers))
        sessions = sorted(_pick(generator, range(SESSIONS), len(tellers)))
        facts += [_Fact(topic, *told) for told in zip(tellers, details, sessions, strict=True)]
    return facts


def _tell(scope, generator, friends, facts, captions, dates):
    """The memories of a conversation: all turns and observations, session by session."""
    day, words = date(2024, 1, 1), sorted({fact.topic[0] for fact in facts})
    memories = []
    for session in range(SESSIONS):
        day += timedelta(days=int(generator.integers(6, 25)))
        waiting = ([], [])  # what each friend has to say: (said, observed, fact)
        for fact in facts:
            if fact.session == session:
                said, observed, ago = _sentences(generator, fact.topic[1:], fact.detail)
                fact.day = day - timedelta(days=ago)
                waiting[fact.teller].append((said, observed, fact))
        for word in _pick(generator, words, DISTRACTION):
            said, observed, _ = _sentences(generator, _one(generator, _DISTRACTORS), word)
            waiting[generator.integers(2)].append((said, observed, None))
        for lines in waiting:
            generator.shuffle(lines)
        header = f"S{session + 1}", f"{day.day} {day:%B %Y}"
        memories += _session(scope, header, generator, friends, waiting, captions, dates)
    return memories


def _sentences(generator, templates, detail):
    """A turn's text, the observation of it with {name} and {poss} still open, and how many days ago it was.

    Facts and distractors share leads and endings, so that nothing but the wording tells them apart.
    """
    ago = int(generator.integers(len(_WHEN)))
    said = _sentence(f"{_one(generator, _LEADS)}{templates[0].format(detail)}")
    return f"{said} {_WHEN[ago]}", templates[1].replace("{}", detail), ago


def _sentence(text):
    return f"{text[0].upper()}{text[1:]}."


def _session(scope, header, generator, friends, waiting, captions, dates):
    """One session: the friends take turns, with small talk from the one who has nothing left to tell."""
    speaker = int(generator.integers(2))
    turns = [(speaker, f"Hey {friends[1 - speaker][0]}, good to hear from you!", None, None)]
    while any(waiting):
        speaker = 1 - speaker
        small_talk = (_one(generator, _SMALL_TALK), None, None)
        turns.append((speaker, *(waiting[speaker].pop() if waiting[speaker] else small_talk)))
    turns.append((1 - speaker, "Let's talk again soon, bye!", None, None))
    (session, day), dialogue, observations = header, [], []
    for number, (speaker, said, observed, fact) in enumerate(turns, start=1):
        (name, poss), turn = friends[speaker], f"{scope}/D{session[1:]}:{number}"
        caption = _one(generator, _CAPTIONS) if generator.random() < 0.1 else None
        text = turn_text(name, said, caption if captions else None, day if dates else None)
        dialogue.append(Memory(turn, scope, "dialogue", session, day, text))
        if fact:
            fact.turn = turn
        if observed:
            text = _sentence(observed.replace("{name}", name).replace("{poss}", poss))
            identity = f"{scope}/{session}/O/{name}/{len(observations)}"
            observations.append(Memory(identity, scope, "observation", session, day, text, (turn,)))
    return dialogue + observations


def _ask(scope, generator, friends, facts):
    """The questions of a conversation, in random order."""
    topics = {}
    for fact in facts:
        topics.setdefault(fact.topic[0], []).append(fact)
    asked = []  # (category, friend, word, answer, gold facts)
    for place, (word, told) in enumerate(topics.items()):
        if place < TWICE:
            asked.append(("multi-hop", told[0].teller, word, ", ".join(fact.detail for fact in told), told))
            continue
        for fact in told:
            asked.append(("single-hop", fact.teller, word, fact.detail, [fact]))
            if len(asked) % 3:  # two in three
                asked.append(("temporal", fact.teller, word, f"{fact.day.day} {fact.day:%B %Y}", [fact]))
            else:
                asked.append(("open-domain", fact.teller, word, f"Something that goes with: {fact.detail}", [fact]))
        if len(told) == 1:  # the other friend never spoke of it; the evidence is what misleads
            asked.append((ADVERSARIAL, 1 - told[0].teller, word, "", told))
    unknown = _one(generator, [topic[0] for topic in _TOPICS if topic[0] not in topics])
    asked.append(("open-domain", int(generator.integers(2)), unknown, "Nothing is known", []))
    queries = []
    for number, (category, friend, word, answer, gold) in enumerate(_pick(generator, asked, len(asked))):
        template = _one(generator, _QUESTIONS.get(category, _QUESTIONS["single-hop"]))
        name, poss = friends[friend]
        text = template.format(name=name, poss=poss, word=word)
        turns = tuple(fact.turn for fact in gold)
        queries.append(Query(f"{scope}/Q{number}", scope, text, answer, category, turns))
    return queries
