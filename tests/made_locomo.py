"""A small synthetic file in the form of LoCoMo, from a seed: random words, and questions about rare ones."""

import json
from typing import NamedTuple

import numpy as np

FRIENDS = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo")
OTHERS = ("Ida", "Jon", "Kim", "Leo", "Mia", "Ned", "Ola", "Pia")


class Size(NamedTuple):
    """How much there is of everything; of each category as many questions as the fixed split needs, and some more."""

    conversations: int = 10
    sessions: int = 8  # of a conversation
    turns: int = 13  # of a session
    questions: tuple = (7, 8, 3, 20, 2)  # of a conversation, by category from 1; the last are adversarial


def words(count=400):
    """Different words of four to eight letters."""
    rng, letters = np.random.default_rng(0), list("aaeeeinorstlhdu")
    return sorted({"".join(rng.choice(letters, length)) for length in rng.integers(4, 9, 2 * count)})[:count]


def write(path, size=Size(), seed=0):  # noqa: B008 - immutable
    """Write the file and return its path."""
    path.write_text(json.dumps(samples(size, seed)), encoding="utf-8")
    return path


def samples(size, seed=0):
    """The conversations, each with its observations and questions."""
    rng, known = np.random.default_rng(seed), words()
    return [_sample(rng, known, number, size) for number in range(size.conversations)]


def _sample(rng, known, number, size):
    def say(count):
        return " ".join(rng.choice(known, count))

    pair = FRIENDS[number % 8], OTHERS[number % 8]
    conversation, observation, turns = {"speaker_a": pair[0], "speaker_b": pair[1]}, {}, []
    for session in range(1, size.sessions + 1):
        conversation[f"session_{session}_date_time"] = f"1:56 pm on {session + number} May, 2023"
        said = [
            {"speaker": pair[at % 2], "dia_id": f"D{session}:{at + 1}", "text": f"{say(9)}."}
            for at in range(size.turns)
        ]
        said[0] |= {"img_url": ["x"], "blip_caption": f"a photo of {say(2)}", "query": say(2)}
        conversation[f"session_{session}"] = said
        turns += said
        observation[f"session_{session}_observation"] = {
            name: [[f"{name} told of {one['text']}", one["dia_id"]] for one in said[at::4]]
            for at, name in enumerate(pair)
        }
    qa = []
    for category, count in enumerate(size.questions, start=1):
        for _ in range(count):
            held = rng.choice(len(turns), 2 if category == 1 else 1, replace=False)
            evidence = [turns[at] for at in held]
            parts = [one["text"].rstrip(".").split() for one in evidence]
            about = " and ".join(" ".join(rng.choice(part[:6], 3, replace=False)) for part in parts)
            asked = {"question": f"What did {evidence[0]['speaker']} say of {about}?", "category": category}
            asked["evidence"] = [one["dia_id"] for one in evidence]
            told = 2000 + int(held[0]) if category == 2 else ", ".join(part[-1] for part in parts)
            qa.append(asked | ({"adversarial_answer": told} if category == 5 else {"answer": told}))
    return {"sample_id": f"made-{number}", "conversation": conversation, "observation": observation, "qa": qa}
