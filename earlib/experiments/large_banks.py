"""Adapters on banks larger than RAM: applied to the candidates of the frozen embeddings, or folded into the bank.

Applied, as in the paper, the adapter re-ranks K candidates (`rerank`); folded, all memories are adapted in one pass
(`fold`). `quality_of_uses` compares both on real questions, `cost_of_uses` on a large synthetic bank.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from earlib import devices, paths
from earlib.core import captured
from earlib.core.config import Config
from earlib.core.ordering import best
from earlib.data import candidates
from earlib.data.search import ROWS, top_k
from earlib.experiments import measures, runs, settings
from earlib.experiments.banks import Bank, build_index, index_path, overlap, write_bank
from earlib.experiments.latency import mean_interval, spread, take_turns, timed

USES = ("applied", "folded")  # of an adapter: to the candidates; into the bank
FOLDED = "ear_adapter_folded"


def adapt(rows, weights):
    """Embeddings, `[..., d]`, mapped by W, `[d, d]`: (I + W) x at unit length (Eq. 3)."""
    return torch.nn.functional.normalize(rows + rows @ weights.to(rows.dtype).T, dim=-1)


def fold(bank, weights, path):
    """Write the bank of all memories adapted by W_m, `[d, d]`; it is searched with adapted queries."""
    write_bank(path, (adapt(block, weights).numpy() for block in bank.blocks()), len(bank), bank.dimension)
    return Bank(path)


def rerank(query, memory, weights, size):
    """The s best candidates, `[N, s]`, of `[N, K, d]` by adapted scores, with W_q and W_m, `[2, d, d]`."""
    scores = torch.einsum("nd,nkd->nk", adapt(query, weights[0]), adapt(memory, weights[1]))
    return best(scores, size)


# -- both uses compared ------------------------------------------------------------------------------------------------


def quality_of_uses(setting):
    """Measures of both uses of an adapter on the evaluation questions of a setting with a random split.

    Returns
    -------
    values : dict of numpy.ndarray
        `[3, R, E]` of the retriever, the adapter applied (`ear_adapter`) and folded.
    queries : numpy.ndarray
        Question numbers, `[R, E]`.
    shared : numpy.ndarray
        Share of the folded slate that is in the other one, `[R, E]`.
    """
    config = Config()
    found, searched = settings.candidates_of(setting, config.depth), settings.benchmark(setting.dataset)
    weights = _trained(setting, config, found)
    queries = np.stack([settings.split(found.scopes, setting, seed)[1] for seed in range(setting.seeds)])
    values, shared = {name: [] for name in ("retriever", "ear_adapter", FOLDED)}, []
    for seed, asked in enumerate(torch.from_numpy(queries)):
        applied = rerank(found.query[asked], found.memory[asked], weights[:, seed], config.slate_size)
        query, bank = adapt(found.query, weights[0, seed]), adapt(found.bank, weights[1, seed]).half().float()
        index = candidates.nearest(searched, query, bank, setting.store, config.depth)
        folded = replace(found, query=query, bank=bank, **candidates.chosen(searched, index, setting.store))
        first = torch.arange(config.slate_size).expand_as(applied)
        for name, of, slates in zip(values, (found, found, folded), (first, applied, first), strict=True):
            values[name].append(measures.measure(of, asked[None], slates[None]))
        shared.append(overlap(found.index[asked].gather(1, applied), folded.index[asked].gather(1, first)).numpy())
    return {name: np.concatenate(parts, 1) for name, parts in values.items()}, queries, np.stack(shared)


def _trained(setting, config, found):
    """W_q and W_m, `[2, R, d, d]`, trained side by side as in `runs.run`; seeds one by one would round otherwise."""
    found, seeds = found.to(devices.ready(setting.device)), range(setting.seeds)
    order = np.stack([settings.split(found.scopes, setting, seed)[0] for seed in seeds])
    order = torch.from_numpy(order).to(found.bank.device)
    critic = runs.critic_of(config, found, seeds, order)
    learner = captured.learner(config, found, critic, seeds, getattr(torch, setting.dtype))
    for _ in learner.train(order):
        pass
    return torch.stack([W.detach().cpu() for W in learner.adapter.matrices])


def resampled(real, count):
    """Yield synthetic memories, `[m, d]`, that lie about real ones, `[n, d]`, as these about each other.

    Each is c o + sqrt(1 - c^2) t with a real embedding o, a random direction t orthogonal to it, and the cosine c of a
    random real memory and its nearest neighbour. The first are the same for every count.
    """
    nearest = top_k(real, real, 2)[0][:, 1].clamp(max=1)  # itself is the first, or a copy of it
    rng = torch.Generator().manual_seed(0)
    for start in range(0, count, ROWS):
        origin, drawn = torch.randint(len(real), (2, ROWS), generator=rng)
        direction = torch.randn(ROWS, real.shape[1], generator=rng)
        origin, cosine = real[origin], nearest[drawn, None]
        direction -= origin * (direction * origin).sum(1, keepdim=True)
        direction = torch.nn.functional.normalize(direction, dim=1)
        yield (cosine * origin + (1 - cosine**2).sqrt() * direction)[: count - start].numpy()


class Costs(NamedTuple):
    """Costs of both uses in one bank."""

    seconds: dict  # (search, use) -> [N] from the query's embedding to the slate; search is "exact" or "approximate"
    read: np.ndarray  # [N] seconds to read the embeddings once
    found: dict  # use -> [N] share of the exact first stage that the approximate one finds
    overlap: np.ndarray  # [N] share of the folded slate that is in the other one, both exact
    gigabytes: dict  # use -> bank and index on the disk
    made: dict  # use -> seconds to write the bank and to build its index


def cost_of_uses(real, query, weights, count):
    """Measure the `Costs` of both uses of an adapter in a temporary bank of resampled memories, one query at a time.

    The bank is in the operating system's cache, since it was just written. Searches and uses take turns.

    Parameters
    ----------
    real, query : torch.Tensor
        Embeddings that the bank is made of, `[n, d]`, and `[2 N, d]`: the first half sets the number of lists searched,
        the second is measured.
    weights : torch.Tensor
        W_q and W_m, `[2, d, d]`.
    count : int
        M.
    """
    paths.cache().mkdir(parents=True, exist_ok=True)
    calibration, asked = query.chunk(2)
    with tempfile.TemporaryDirectory(dir=paths.cache(), prefix="banks-") as folder:
        path, folded = (Path(folder) / f"{name}.npy" for name in ("frozen", "folded"))
        written, _ = timed(lambda: write_bank(path, resampled(real, count), count, real.shape[1]))
        built, frozen = timed(lambda: build_index(Bank(path), calibration))
        made, indexes = {"applied": written + built}, {"applied": frozen}
        written, bank = timed(lambda: fold(frozen.bank, weights[1], folded))
        built, indexes["folded"] = timed(lambda: build_index(bank, adapt(calibration, weights[0])))
        made["folded"] = written + built
        files = {use: (index.bank.path, index_path(index.bank.path)) for use, index in indexes.items()}
        sizes = {use: sum(file.stat().st_size for file in both) / 1e9 for use, both in files.items()}
        return _timed_uses(indexes, asked, weights)._replace(gigabytes=sizes, made=made)


def _timed_uses(indexes, query, weights):
    """Costs of every search with every use."""
    config, N, frozen = Config(), len(query), indexes["applied"].bank
    searches = {("exact", use): index.bank for use, index in indexes.items()}
    searches |= {("approximate", use): index for use, index in indexes.items()}

    def slate(search, use, one):
        if use == "folded":
            return searches[search, use].search(adapt(one, weights[0]), config.slate_size)[1]
        _, index = searches[search, use].search(one, config.depth)
        return index[rerank(one[None], frozen.rows[index].float()[None], weights, config.slate_size)[0]]

    words, read = frozen.rows.view(torch.int64), np.empty(N)

    def before(n):
        read[n], _ = timed(words.sum)

    works = {key: lambda n, key=key: slate(*key, query[n]) for key in searches}
    seconds, slates = take_turns(works, N, before)
    asked, found = {"applied": query, "folded": adapt(query, weights[0])}, {}
    for use, index in indexes.items():
        found[use] = overlap(*(one.search(asked[use], config.depth)[1] for one in (index, index.bank))).numpy()
    shared = overlap(*(torch.stack(slates["exact", use]) for use in USES)).numpy()
    return Costs(seconds, read, found, shared, {}, {})


def cost_rows(costs, **keys):
    """Rows of a record, with further keys: latency by search and use, shares found and shared, disk, preparation."""

    def percent(shares):
        return {"n_queries": len(shares), **mean_interval(shares, scale=100)}

    made = spread(costs.read, variant="read_once", **keys)
    for (search, use), seconds in costs.seconds.items():
        made += spread(seconds, variant="ear_adapter", search=search, use=use, **keys)
    for use in USES:
        about = {**keys, "variant": "ear_adapter", "use": use}
        made.append({**about, "metric": "found@20", "varies": True, **percent(costs.found[use])})
        made.append({**about, "metric": "disk", "measured": costs.gigabytes[use]})
        made.append({**about, "metric": "preparation", "measured": costs.made[use], "varies": True})
    return [*made, {**keys, "variant": "ear_adapter", "metric": "overlap", **percent(costs.overlap)}]
