"""A stream of conversations, one after the other: gains along the way, and forgetting."""

from typing import NamedTuple

import numpy as np
import torch

from earlib import devices
from earlib.core.learner import Learner
from earlib.experiments.measures import measure
from earlib.experiments.runs import critic_of
from earlib.experiments.settings import candidates_of


class Stream(NamedTuple):
    """Recall@5 along a stream of questions, `[R, N]` in its order; NaN for questions without gold memories."""

    queries: np.ndarray  # [R, N] numbers of the questions
    place: np.ndarray  # [R, N] how many conversations came before
    static: np.ndarray  # [R, N] by the adapter as it starts
    first: np.ndarray  # [R, N] test-then-learn: each before anything was learned from it or those after it
    after: np.ndarray  # [R, N] each when the last of its conversation was learned from
    end: np.ndarray  # [R, N] each at the end of the stream


def arrivals(scopes, seed):
    """Question numbers, `[N]`, by conversations in random order, and how many of these came before each question."""
    names, scope = np.unique(np.asarray(scopes), return_inverse=True)
    rng = np.random.default_rng(seed)
    coming = rng.permutation(len(names))
    order = np.concatenate([rng.permutation(np.flatnonzero(scope == name)) for name in coming])
    return order, np.argsort(coming)[scope[order]]


def run_stream(setting, config):
    """Answer, score, then learn from every question of a benchmark, conversation by conversation; there is no split."""
    found, parts = candidates_of(setting, config.depth).to(devices.ready(setting.device)), []
    for seed in range(setting.seeds):
        order, place = arrivals(found.scopes, seed)
        asked = torch.from_numpy(order)[None].to(found.bank.device)
        critic = critic_of(config, found, (seed,), asked)
        learner = Learner(config, found, critic, (seed,), getattr(torch, setting.dtype))
        ends = np.flatnonzero(np.diff(place, append=-1)) + 1  # after the last question of each conversation
        parts.append((order[None], place[None], *_streamed(learner, found, asked, ends.tolist(), config.batch_size)))
    return Stream(*map(np.concatenate, zip(*parts, strict=True)))


def _streamed(learner, found, asked, ends, batch):
    """Recall@5 of one seed, `[1, N]` each: static, test-then-learn, after its conversation, at the end."""

    def recall(queries):
        return measure(found, queries, learner.retrieve(queries))[0]

    static, first, after, start = recall(asked), [recall(asked[:, :batch])], [], 0
    for step in learner.train(asked):
        if step.seen < asked.shape[1]:
            first.append(recall(asked[:, step.seen : step.seen + batch]))
        for end in [end for end in ends if start < end <= step.seen]:
            after.append(recall(asked[:, start:end]))
            start = end
    return static, np.concatenate(first, 1), np.concatenate(after, 1), recall(asked)
