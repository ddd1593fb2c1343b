"""The reference that the core is compared with: notebooks/annotated_ear.ipynb, and here the paper's other readings.

The notebook transcribes the paper's equations, one question at a time, and shares nothing with the package. A function
that is marked `reading` below takes the place of the notebook's of the same name, and calls it where the options have
their defaults. `h` is a configuration; its options have the names of the package's. Random numbers are uniforms drawn
beforehand, by position in training (n) and replayed experience (k):

    critic [N, T, K]  the critic's errors         replay [N, B, K]  Gumbel noise of the replay slates
    slate  [N, T, K]  noise of RMM's slates       draw   [N, B, K]  second noise of replay_slate = "softmax"
    choice [N, B]     random choice of experiences
"""

import json
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import torch

from earlib import paths


def transcription():
    """A module of the notebook's cells that are marked as the reference."""
    module = ModuleType("annotated_ear")
    for cell in json.loads((paths.notebooks() / "annotated_ear.ipynb").read_text(encoding="utf-8"))["cells"]:
        if "reference" in cell["metadata"].get("tags", []):
            exec("".join(cell["source"]), vars(module))
    return module


paper = transcription()
top, scores = paper.top, paper.scores


def reading(function):
    """Put a function in the place of the notebook's of its name, which is `plain` of it."""
    function.plain = getattr(paper, function.__name__)
    setattr(paper, function.__name__, function)
    return function


def beside(h, **more):
    """The options, and what belongs to one run (global_rate) or question (p, readable, u_choice) beside them."""
    return SimpleNamespace(**{**vars(h), **more})


def question(query, memories, gold, side=None, n=None):
    """A question as the notebook has it; with the scores of a reranker [K], and its position in training."""
    return SimpleNamespace(q=query, m=memories, gold=gold, side=side, n=n)


class Slate(list):
    """Candidates with the Gumbel noise g [K] with which they were drawn."""

    noise = None


def gumbel(u):
    """g = -log(-log u) (Eq. 19)."""
    return -torch.log(-torch.log(u))


# ------------------------------------------------------------------------------- Adapter, Explorer and critic


@reading
def adapt(h, W, q, m):
    """Eq. 3, or without the norm (Algorithm 3 line 1)."""
    return adapt.plain(h, W, q, m) if h.normalise else (q + W[0] @ q, m + m @ W[1].T)


@reading
def compose(h, z, M, N, mu):
    """Statistics that start from zero at every call (Algorithm 2 lines 2-3); side information p, a term of Eq. 7."""
    if h.statistics == "reset":
        N, mu = torch.zeros_like(z), torch.zeros_like(z)
    if h.side:
        z, h = h.relevance * z + h.side * h.p, beside(h, relevance=1.0)
    return compose.plain(h, z, M, N, mu)


@reading
def explore(h, z, M, cite, rounds):
    """A citation that could not be read is NaN and changes no statistics."""
    if getattr(h, "readable", None) is None:
        return explore.plain(h, z, M, cite, rounds)
    N, mu, slates, citations = torch.zeros_like(z), torch.zeros_like(z), [], []
    for t in range(rounds):
        slates.append(paper.compose(h, z, M, N, mu))
        citations.append(cite(t, slates[t]))
        for i, y in zip(slates[t], citations[t].tolist(), strict=True):
            if y == y:
                N[i] += 1
                mu[i] += (y - mu[i]) / N[i]
    return slates, citations, N, mu


@reading
def critic(h, gold, u):
    """False positives at one rate for all slates; citations that can be read, readable [T, s]."""
    cite, readable = critic.plain(h, gold, u), getattr(h, "readable", None)
    if h.errors == "global":

        def cite(t, slate):
            return torch.where(u[t, slate] < torch.where(gold[slate], h.recall / 100, h.global_rate), 1.0, -1.0)

    return cite if readable is None else lambda t, slate: cite(t, slate).masked_fill(~readable[t], torch.nan)


# ------------------------------------------------------------------------------- Loss


def log_probability(h, z, slate):
    """log p_phi of a slate's members [s]: Eq. 4, with a temperature, or another of its readings."""
    z = z / h.softmax_temperature
    if h.likelihood == "plackett-luce":  # those before j are gone
        left = [[i for i in range(len(z)) if i not in slate[:j]] for j in range(len(slate))]
        return torch.stack([z[i] - torch.logsumexp(z[rest], 0) for i, rest in zip(slate, left, strict=True)])
    if h.likelihood == "noisy" and getattr(slate, "noise", None) is not None:
        z = (z + slate.noise) / h.temperature
    return (z - torch.logsumexp(z, 0))[slate]


@reading
def ranking_loss(h, z, slates, citations):
    """Other likelihoods; the mean is over the citations that could be read, and 0 without one."""
    read = [~y.isnan() for y in citations]
    if h.likelihood == "clean" and h.softmax_temperature == 1 and all(map(torch.all, read)):
        return ranking_loss.plain(h, z, slates, citations)
    log_p = [log_probability(h, z, slate)[kept] for slate, kept in zip(slates, read, strict=True)]
    weights = [y[kept] - h.baseline for y, kept in zip(citations, read, strict=True)]
    return -(torch.cat(weights) * torch.cat(log_p)).sum() / max(sum(map(len, weights)), 1)


def listwise_loss(h, z, y_bar):
    """Losses that the paper has not, of the candidates that were cited (P) and those that were not (N); 0 without P.

    Candidates that were never shown are in N, or nowhere where unseen = "left out".
    """
    z = z / h.softmax_temperature
    P = [i for i in range(len(z)) if y_bar[i] > 0]
    N = [i for i in range(len(z)) if i not in P and (h.unseen == "negative" or y_bar[i] == y_bar[i])]
    P.sort(key=lambda i: (-round(z[i].item(), 9), i))
    loss = 0 * z.sum()
    for number, i in enumerate(P):
        if h.objective == "softmax":
            loss = loss - (z[i] - torch.logsumexp(z[P + N], 0))
        elif h.objective == "contrastive":
            loss = loss - (z[i] - torch.logsumexp(z[[i] + N], 0))
        elif h.objective == "plackett-luce":
            loss = loss - (z[i] - torch.logsumexp(z[P[number:] + N], 0))
        else:  # logistic, of pairs
            for ell in N:
                loss = loss - torch.log(1 / (1 + torch.exp(z[ell] - z[i]))) / len(N)
    return loss / max(len(P), 1)


# ------------------------------------------------------------------------------- Experiences


@reading
def aggregate(h, slates, citations, K):
    """Citations that could be read; their mean, or their sum over T (Algorithm 1 line 8)."""
    read = [~y.isnan() for y in citations]
    slates = [[i for i, kept in zip(*pair, strict=True) if kept] for pair in zip(slates, read, strict=True)]
    y_bar = aggregate.plain(h, slates, [y[kept] for y, kept in zip(citations, read, strict=True)], K)
    if h.aggregate == "rounds":
        y_bar = y_bar * torch.bincount(torch.tensor(sum(slates, []), dtype=torch.int64), minlength=K) / len(slates)
    return y_bar


@reading
def noisy_slate(h, z, u):
    """A slate in training: RMM's, or of the controls s at random, or all K candidates."""
    if h.training_slates == "all":
        return list(range(len(z)))
    slate = Slate(noisy_slate.plain(h, 0 * z if h.training_slates == "random" else z, u))
    slate.noise = gumbel(u) if h.training_slates == "gumbel" else None
    return slate


@reading
def learn(h, W, x, u):
    """The experience with its position and all that the critic said; the loss is one of all candidates, or L_cur."""
    h = beside(h, p=x.side, readable=u["readable"])
    e, loss = learn.plain(h, W, x, u)
    said = paper.critic(beside(h, readable=None), x.gold, u["critic"])
    e.n, e.said = x.n, [said(t, slate).tolist() for t, slate in enumerate(e.slates)]
    return e, loss if h.objective == "reward" else listwise_loss(h, scores(h, W, x)[0], e.y_bar)


@reading
def similar(h, q, buffer):
    """J_n by similarity, by the lowest mean of y-bar (0 if nothing was read), or at random without replacement."""
    B = min(h.replay_size, len(buffer))
    if h.replay_choice == "similarity" or not B:
        return similar.plain(h, q, buffer)
    if h.replay_choice == "reward":
        return [buffer[r] for r in top(-torch.stack([e.y_bar.nanmean().nan_to_num() for e in buffer]), B)]
    left = list(buffer)
    return [left.pop(int(u * len(left))) for u in h.u_choice[:B].tolist()]


def replay_slate(h, z, u, u_draw, y_bar):
    """S~^(r) (Algorithm 3 line 18): the top s of z + g, of z / tau + g, or a draw from softmax((z + g) / tau)."""
    g, tau, z = gumbel(u), h.temperature, z.detach()
    if h.replay_slate == "softmax":
        perturbed = (z + g) / tau + gumbel(u_draw)
    else:
        perturbed = z / (tau if h.replay_slate == "scaled" else 1) + g
    if h.unseen == "left out":
        perturbed = perturbed.masked_fill(y_bar.isnan(), -torch.inf)
    slate = Slate(top(perturbed, h.slate_size))
    slate.noise = g
    return slate


def replay_reward(h, slate, y_bar):
    """r~ (Eq. 20, Algorithm 3 line 19); NaN for candidates that are left out."""
    r = torch.where(y_bar[slate] > 0, 1.0, -1.0)
    return r if h.unseen == "negative" else r.masked_fill(y_bar[slate].isnan(), torch.nan)


@reading
def replay(h, W, e, buffer, u):
    """Other choices of experiences and slates; here u holds all uniforms of the position."""
    pool = buffer + [e] if h.replay_current else buffer  # r < n: those of earlier batches
    random = h.replay_size and h.replay_choice == "random"
    h = beside(h, training_slates="gumbel", u_choice=u["choice"] if random else None)
    drawn = u["replay"] if h.replay_size and h.objective == "reward" else ()
    if (h.objective, h.replay_slate, h.unseen) == ("reward", "gumbel", "negative"):
        return replay.plain(h, W, e, pool, drawn)
    e.replayed, e.replay_slates, loss = paper.similar(h, e.q, pool), [], e.q.new_zeros(())
    for k, r in enumerate(e.replayed):
        z, _ = scores(h, W, r)
        if h.objective != "reward":
            loss = loss + listwise_loss(h, z, r.y_bar)
            e.replay_slates.append([])
            continue
        slate = replay_slate(h, z, drawn[k], u["draw"][k] if h.replay_slate == "softmax" else None, r.y_bar)
        loss = loss + paper.ranking_loss(h, z, [slate], [replay_reward(h, slate, r.y_bar)])
        e.replay_slates.append(slate)
    return loss / max(len(e.replayed), 1)


# ------------------------------------------------------------------------------- Training and inference


@dataclass
class Trajectory:
    """All that happened in training: lists by position in the order, then lists by update."""

    slates: list = field(default_factory=list)  # [T][s] candidate indices
    citations: list = field(default_factory=list)  # [T][s] of +1 or -1, also where it could not be read
    replayed: list = field(default_factory=list)  # positions, in the order of the choice
    replay_slates: list = field(default_factory=list)  # [|J_n|][s] candidate indices
    losses: list = field(default_factory=list)  # (current, replay), means over the batch
    gradients: list = field(default_factory=list)  # (of W_q, of W_m)
    weights: list = field(default_factory=list)  # (W_q, W_m) after the update
    multiply_adds: int = 0  # of the adapters, forward product and weight gradient


def train(
    config, queries, memories, gold, order, uniforms, W_q, W_m, global_rate=None, readable=None, side=None
) -> Trajectory:
    """Train one replica.

    Parameters
    ----------
    queries, memories, gold : tensors [N, d], [N, K, d], bool [N, K]
        The dtype of the first two is that of all computation.
    order : list of query indices, may repeat
        A position n in it names the query and its experience.
    uniforms : dict of tensors
        Those of the module's heading that the configuration needs, by position.
    W_q, W_m : tensors [d, d]
        The start.
    global_rate : float, with errors = "global"
    readable : bool [positions, T, s], citations that could be read; by default all
    side : tensor [N, K], scores of a reranker; by default none
    """
    stream = []
    for n, x in enumerate(order):
        u = {name: values[n] for name, values in uniforms.items()}
        asked = question(queries[x], memories[x], gold[x], None if side is None else side[x], n)
        stream.append((asked, {**u, "replay": u, "readable": None if readable is None else readable[n]}))
    out, W = Trajectory(), [one.detach().clone().requires_grad_() for one in (W_q, W_m)]
    cost = 2 * (1 + memories.shape[1]) * queries.shape[1] ** 2  # 1 + K vectors, forward and weight gradient
    for batch, losses in paper.train(beside(config, global_rate=global_rate), W, stream):
        for e in batch:
            out.slates.append(e.slates)
            out.citations.append(e.said)
            out.replayed.append([r.n for r in e.replayed])
            out.replay_slates.append(e.replay_slates)
            out.multiply_adds += cost * (1 + len(e.replayed))
        out.losses.append(losses)
        out.gradients.append(tuple(one.grad.clone() for one in W))
        out.weights.append(tuple(one.detach().clone() for one in W))
    return out


@reading
def retrieve(h, W, x, u=None, u_slate=None):
    """Noise at test time, u_slate [K]; the slate after all T rounds: cited first, then by score."""
    h = beside(h, p=x.side)
    if u is None and h.test_noise:
        return list(noisy_slate.plain(h, scores(h, W, x)[0], u_slate))
    if u is None or h.test_slate == "before":
        return retrieve.plain(h, W, x, u)
    z, M = scores(h, W, x)
    *_, mu = paper.explore(h, z, M, paper.critic(h, x.gold, u), h.rounds)
    by_score = top(z, len(z))
    return ([i for i in by_score if mu[i] > 0] + [i for i in by_score if mu[i] <= 0])[: h.slate_size]


# ------------------------------------------------------------------------------- RMM


def rmm_update(W_q, W_m, query, memories, u, cite, s, tau=0.5, b=0.5, eta=0.001):
    """The update of RMM for one query, in the formulas of RMM (arXiv 2503.08026v2) and as a plain gradient step.

    RMM does not say how P(M_M | q, M_K) of a slate is made of the p of its members; here it is their product.

    Parameters
    ----------
    u : uniforms of the Gumbel noise, [K]
    cite : function slate -> R of its members, +1 (cited) or -1

    Returns
    -------
    slate, W_q, W_m
    """
    W_q, W_m = (W.detach().clone().requires_grad_() for W in (W_q, W_m))
    q = query + W_q @ query  # q' = q + W_q q
    ms = [m + W_m @ m for m in memories]  # m' = m + W_m m
    perturbed = [q @ m + g for m, g in zip(ms, gumbel(u), strict=True)]  # s~_i = s_i + g_i with s_i = q' . m'_i
    p = torch.stack([one / tau for one in perturbed]).softmax(0)  # p = softmax(s~ / tau)
    slate = top(torch.stack(perturbed), s)
    steps = [torch.zeros_like(W_q), torch.zeros_like(W_m)]
    for i, R in zip(slate, cite(slate), strict=True):
        gradients = torch.autograd.grad(torch.log(p[i]), (W_q, W_m), retain_graph=True)
        steps = [step + eta * (R - b) * G for step, G in zip(steps, gradients, strict=True)]  # eta (R - b) grad log P
    return slate, *(W.detach() + step for W, step in zip((W_q, W_m), steps, strict=True))
