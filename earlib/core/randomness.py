"""Random numbers: drawn beforehand, in float64, from generators that belong to one seed and one purpose each.

A seed's numbers are therefore the same alone as among others, and the same in float32 as in float64.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# The position is part of the generator's key: append only.
PURPOSES = ("train", "test", "start", "errors", "rotation", "live", "thompson")


class Uniforms(NamedTuple):
    """Uniforms in (0, 1) of R replicas for N queries, in the order in which they are processed."""

    critic: Tensor  # [R, N, T, K] one a round and candidate
    slate: Tensor | None = None  # [R, N, T, K] Gumbel noise of RMM's slates; T = 1 where none needs more
    choice: Tensor | None = None  # [R, N, B] random choice of experiences
    replay: Tensor | None = None  # [R, N, B, K] Gumbel noise of the replay slates
    draw: Tensor | None = None  # [R, N, B, K] second noise, for slates sampled from the softmax of noisy scores

    def part(self, start: int, stop: int) -> "Uniforms":
        """The uniforms of positions `start` to `stop`."""
        return Uniforms(self.critic[:, start:stop], *(None if u is None else u[:, start:stop] for u in self[1:]))


def generator(seed: int, purpose: str, *step: int) -> np.random.Generator:
    """The generator of one seed for one purpose, or for one step of it."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, PURPOSES.index(purpose), *step)))


def draw(
    config,
    seeds: Sequence[int],
    order: Tensor,
    depth: int,
    queries: int,
    purpose: str,
    device: str | torch.device = "cpu",
) -> Uniforms:
    """Draw the uniforms of a pass over some queries, in float64.

    Parameters
    ----------
    config : Config
    seeds : sequence of int
        One a replica.
    order : torch.Tensor
        Query numbers in the order of processing, `[R, N]`.
    depth, queries : int
        K, and the number of queries in all.
    purpose : {"train", "test"}
    """
    shapes = _shapes(config, order.shape[1], depth, purpose == "train")
    drawn: dict[str, list] = {name: [] for name in shapes}
    for replica, seed in enumerate(seeds):
        rng = generator(seed, purpose)
        for name, shape in shapes.items():
            drawn[name].append(_open(rng, shape))
        if config.errors == "persistent":  # one number a query and memory, whenever it is shown
            table = _open(generator(seed, "errors"), (queries, depth))
            drawn["critic"][-1] = np.repeat(table[order[replica].cpu().numpy(), None], config.rounds, axis=1)
    return Uniforms(**{name: torch.from_numpy(np.stack(parts)).to(device) for name, parts in drawn.items()})


def live(config, seed: int, step: int, depth: int) -> Uniforms:
    """Draw the uniforms of one update of an endless stream: one replica, one query; they depend on seed and step."""
    rng, shapes = generator(seed, "live", step), _shapes(config, 1, depth, training=True)
    return Uniforms(**{name: torch.from_numpy(_open(rng, shape))[None] for name, shape in shapes.items()})


def _shapes(config, N, depth, training):
    """Shapes of the uniforms for N queries of a replica, in the order in which they are drawn."""
    noisy = config.rounds if training and config.training_slates != "explorer" else 1
    shapes: dict[str, tuple] = {"critic": (N, config.rounds, depth), "slate": (N, noisy, depth)}
    if training and config.replay_size:
        shapes["replay"] = (N, config.replay_size, depth)
        shapes["choice"] = (N, config.replay_size)
        shapes["draw"] = (N, config.replay_size, depth)
    return shapes


def shuffled(gold: Tensor, seeds: Sequence[int]) -> Tensor:
    """Gold labels shuffled among the candidates of each query, once a seed, `[N, K]` to `[R, N, K]`."""
    orders = [torch.from_numpy(generator(seed, "errors").random(gold.shape).argsort(-1)) for seed in seeds]
    return torch.stack([gold.gather(-1, order.to(gold.device)) for order in orders])


def _open(rng, shape):
    return np.maximum(rng.random(shape), 2.0**-54)  # 0 is drawn once in 2^53, and its Gumbel noise is not finite
