"""The paper's algorithms, transcribed: one query, one candidate, one replayed experience at a time.

This file decides what is right. It follows the paper's equations and the lines of its Algorithms 1 to 3, keeps their
symbols, and shares nothing with the package but the names of the options. The gradient is torch's autograd over the
loss as it is written. Random numbers are uniforms drawn beforehand (n: position in training, k: replayed experience):

    u_critic [N, T, K]  the critic's errors         u_replay [N, B, K]  Gumbel noise of the replay slates
    u_slate  [N, T, K]  noise of RMM's slates       u_draw   [N, B, K]  second noise of replay_slate = "softmax"
    u_choice [N, B]     random choice of experiences
"""

import math
from dataclasses import dataclass, field

import torch

from earlib.core.config import Config


@dataclass
class Experience:
    """e^(n) (Eq. 13): embeddings before the adapter and the mean citations of the observed candidates."""

    position: int
    query: torch.Tensor
    memories: torch.Tensor
    y_bar: dict[int, float]  # i -> y-bar_i, for i in O^(n) only (Eq. 11)


@dataclass
class Trajectory:
    """All that happened in training: lists by position in the order, then lists by update."""

    slates: list = field(default_factory=list)  # [T][s] candidate indices
    citations: list = field(default_factory=list)  # [T][s] of +1 or -1, also where it could not be read
    replayed: list = field(default_factory=list)  # positions, in the order of the choice
    replay_slates: list = field(default_factory=list)  # [|J_n|][s] candidate indices
    losses: list = field(default_factory=list)  # (current, replay, total), means over the batch
    gradients: list = field(default_factory=list)  # (of W_q, of W_m)
    weights: list = field(default_factory=list)  # (W_q, W_m) after the update
    multiply_adds: int = 0  # of the adapters, forward product and weight gradient


# ---------------------------------------------------------------------------------------------- Adapter


def adapt(config: Config, W_q, W_m, query, memories):
    """Eq. 3, or without the norm (Algorithm 3 line 1): the adapted query and the list of K adapted memories."""
    q = query + W_q @ query  # (I + W_q) q
    ms = [m + W_m @ m for m in memories]  # (I + W_m) m_i
    if config.normalise:
        q, ms = q / q.norm(), [m / m.norm() for m in ms]
    return q, ms


def scores(q, ms):
    """z_i of Eq. 4 for every candidate, and the similarities between candidates that Eq. 6 needs."""
    z = torch.stack([q @ m for m in ms])
    M = torch.stack(ms).detach()
    return z, M @ M.T


def gumbel(uniforms) -> list[float]:
    """g_i = -log(-log u_i) (Eq. 19)."""
    return [-math.log(-math.log(u)) for u in uniforms.tolist()]


def top(values, s) -> list[int]:
    """Indices of the s largest values, largest first; values equal to 9 decimals tie, and the lowest index wins."""
    return sorted(range(len(values)), key=lambda i: (-round(values[i], 9), i))[:s]


# ---------------------------------------------------------------------------------------------- Exploratory Reflection


def explorer_slate(config: Config, z, gram, counts, means, p=None) -> list[int]:
    """Algorithm 2, lines 1 to 14: one slate from scores z [K], similarities [K, K], pulls N_i and means mu_i.

    p [K]: scores of a reranker, side information whose term in Eq. 7 is not the paper's; by default none.
    """
    p = [0.0] * len(z) if p is None else p.tolist()
    z, gram, K = z.tolist(), gram.tolist(), len(z)
    slate = []  # line 1
    if config.statistics == "reset":  # lines 2-3, at every call
        counts, means = [0] * K, [0.0] * K
    N = sum(counts)
    pool = list(range(K))  # line 4
    for _ in range(config.slate_size):  # line 5
        A = {}
        for i in pool:  # line 6; z_i of line 7 is given
            D = max((gram[i][ell] for ell in slate), default=0.0)  # line 8, Eq. 6
            U = means[i] + config.ucb * math.sqrt(math.log(1 + N) / (1 + counts[i]))  # line 9, Eq. 5
            A[i] = config.relevance * z[i] - config.diversity * D + config.exploration * U  # Eq. 7
            A[i] += config.side * p[i]
        best = max(pool, key=lambda i: round(A[i], 9))  # line 11, Eq. 8; of equal ones the lowest index
        slate.append(best)  # line 12
        pool.remove(best)  # line 13
    return slate


def explore(config: Config, z, gram, ask, rounds=None, readable=None, p=None):
    """Exploratory Reflection: Algorithm 2 over T rounds.

    Parameters
    ----------
    z, gram : tensors [K], [K, K]
    ask : function (t, slate) -> s citations in {-1, +1}
    rounds : T, by default the configuration's
    readable : bool [T][s], citations that could be read; by default all
    p : scores of a reranker [K], as in explorer_slate

    Returns
    -------
    slates [T][s], citations [T][s], counts N_i [K], means mu_i [K] (over all rounds, also with statistics = "reset")
    """
    counts, means = [0] * len(z), [0.0] * len(z)
    slates, citations = [], []
    for t in range(config.rounds if rounds is None else rounds):
        slate = explorer_slate(config, z, gram, counts, means, p)  # lines 1-14
        y = ask(t, slate)  # line 15
        for j, i in enumerate(slate):  # line 16
            if readable is None or readable[t][j]:
                counts[i] += 1  # line 17
                means[i] += (y[j] - means[i]) / counts[i]  # line 18, Eq. 9
        slates.append(slate)
        citations.append(y)
    return slates, citations, counts, means


# ---------------------------------------------------------------------------------------------- Critic


def false_positive_rate(n, s, recall, precision) -> float:
    """p_fp = n r (1 - p) / (u p) with u = s - n, at most 1; s - n > 0. ("Simulating Citation Scores")"""
    return min(1.0, n * recall * (1 - precision) / ((s - n) * precision))


def simulated_citations(slate, gold, uniforms_of_candidates, recall, precision, errors, global_rate) -> list[int]:
    """The simulated critic: a citation in {-1, +1} for each member of the slate.

    Parameters
    ----------
    gold : bool [K]
    uniforms_of_candidates : [K], of this round; with errors = "persistent" the same in every round
    recall, precision : r, p in [0, 1]
    global_rate : p_fp of every slate, with errors = "global"
    """
    n, s = sum(bool(gold[i]) for i in slate), len(slate)
    y = []
    for i in slate:
        if gold[i]:
            chance = recall  # true positives
        else:
            chance = global_rate if errors == "global" else false_positive_rate(n, s, recall, precision)
        y.append(+1 if uniforms_of_candidates[i] < chance else -1)
    return y


def critic(config: Config, gold, u_critic, global_rate):
    """The function (t, slate) -> citations for one query; u_critic [T, K]."""

    def ask(t, slate):
        r, p = config.recall / 100, config.precision / 100
        return simulated_citations(slate, gold.tolist(), u_critic[t].tolist(), r, p, config.errors, global_rate)

    return ask


# ---------------------------------------------------------------------------------------------- Loss


def log_probability(config: Config, z, slate, j, noise):
    """log p_phi of the slate's j-th member: Eq. 4, or one of its other readings. noise: g [K] or None."""
    z = z / config.softmax_temperature
    if config.likelihood == "plackett-luce":  # those before j are gone
        left = [i for i in range(len(z)) if i not in slate[:j]]
        return z[slate[j]] - torch.logsumexp(z[left], 0)
    if config.likelihood == "noisy" and noise is not None:
        z = (z + torch.tensor(noise, dtype=z.dtype)) / config.temperature
    return z[slate[j]] - torch.logsumexp(z, 0)  # log (exp z_i / sum_l exp z_l)


def ranking_loss(config: Config, z, slates, feedback, noise):
    """L_rank (Eq. 10; Algorithm 3 lines 7, 9 and 20). feedback [T][s]: +1, -1, or None for a member left out.

    noise [T]: of each slate, None for a slate drawn without.
    """
    loss, terms = z.new_zeros(()), 0
    for slate, y, g in zip(slates, feedback, noise, strict=True):
        for j in range(len(slate)):
            if y[j] is not None:
                loss = loss - (y[j] - config.baseline) * log_probability(config, z, slate, j, g)
                terms += 1
    return loss / max(terms, 1)  # T s of them, if none is left out


def listwise_loss(config: Config, z, y_bar):
    """Losses that the paper has not, of the candidates that were cited (P) and those that were not (N); 0 without P.

    y_bar as in Experience. Candidates that were never shown are in N, or nowhere where unseen = "left out".
    """
    z = z / config.softmax_temperature
    P = [i for i in range(len(z)) if y_bar.get(i, -1) > 0]
    N = [i for i in range(len(z)) if i not in P and (config.unseen == "negative" or i in y_bar)]
    P.sort(key=lambda i: (-round(z[i].item(), 9), i))
    loss = z.new_zeros(())
    for number, i in enumerate(P):
        if config.objective == "softmax":
            loss = loss - (z[i] - torch.logsumexp(z[P + N], 0))
        elif config.objective == "contrastive":
            loss = loss - (z[i] - torch.logsumexp(z[[i] + N], 0))
        elif config.objective == "plackett-luce":
            loss = loss - (z[i] - torch.logsumexp(z[P[number:] + N], 0))
        else:  # logistic, of pairs
            for ell in N:
                loss = loss - torch.log(1 / (1 + torch.exp(z[ell] - z[i]))) / len(N)
    return loss / max(len(P), 1)


# ---------------------------------------------------------------------------------------------- Experience Buffer


def aggregate(config: Config, slates, feedback) -> dict[int, float]:
    """y-bar_i of the observed candidates (Eqs. 11 and 12, or Algorithm 1 line 8). feedback as in ranking_loss."""
    total, shown = {}, {}
    for slate, y in zip(slates, feedback, strict=True):
        for j, i in enumerate(slate):
            if y[j] is not None:  # o_i^(n,t) = 1
                total[i] = total.get(i, 0) + y[j]
                shown[i] = shown.get(i, 0) + 1
    return {i: total[i] / (shown[i] if config.aggregate == "shown" else len(slates)) for i in total}


def reward_of_experience(e: Experience) -> float:
    """Mean of y-bar over the observed candidates; 0 if none."""
    return sum(e.y_bar.values()) / len(e.y_bar) if e.y_bar else 0.0


def choose_experiences(config: Config, query, pool, u_choice) -> list[Experience]:
    """J_n: B experiences of the pool, or all of a smaller one (Eq. 15; "Impact of Sampling Strategy")."""
    B = min(config.replay_size, len(pool))
    if B == 0:
        return []
    if config.replay_choice == "similarity":  # Eq. 15, Algorithm 3 line 14: before the adapter
        return [pool[r] for r in top([float(query @ e.query / (query.norm() * e.query.norm())) for e in pool], B)]
    if config.replay_choice == "reward":  # the bottom B
        return [pool[r] for r in top([-reward_of_experience(e) for e in pool], B)]
    left = list(pool)  # random, without replacement
    return [left.pop(int(u * len(left))) for u in u_choice[:B].tolist()]


def replay_slate(config: Config, z, g, g_draw, observed) -> list[int]:
    """S~^(r) (Algorithm 3 line 18, Eq. 19). g, g_draw: noise [K], the second one for "softmax" only."""
    z, tau = z.tolist(), config.temperature
    if config.replay_slate == "gumbel":
        perturbed = [z[i] + g[i] for i in range(len(z))]
    elif config.replay_slate == "scaled":
        perturbed = [z[i] / tau + g[i] for i in range(len(z))]
    else:  # without replacement from softmax((z + g) / tau)
        perturbed = [(z[i] + g[i]) / tau + g_draw[i] for i in range(len(z))]
    if config.unseen == "left out":
        perturbed = [perturbed[i] if i in observed else -math.inf for i in range(len(z))]
    return top(perturbed, config.slate_size)


def replay_reward(config: Config, y_bar, i):
    """r~_i (Eq. 20, Algorithm 3 line 19); None for a candidate that is left out."""
    if i not in y_bar:
        return -1 if config.unseen == "negative" else None
    return +1 if y_bar[i] > 0 else -1


# ---------------------------------------------------------------------------------------------- Assimilating Reflection


def current_query(config: Config, W_q, W_m, n, query, memories, gold, uniforms, global_rate, readable, p):
    """Algorithm 3, lines 1 to 12: slates, citations, L_cur and the experience of the query at position n."""
    z, gram = scores(*adapt(config, W_q, W_m, query, memories))  # line 1
    ask = critic(config, gold, uniforms["u_critic"][n], global_rate)  # line 5
    noise = [None] * config.rounds
    if config.training_slates == "explorer":  # lines 3-6
        slates, citations, _, _ = explore(config, z.detach(), gram, ask, readable=readable, p=p)
    else:
        slates, citations = [], []
        for t in range(config.rounds):
            if config.training_slates == "gumbel":  # RMM: the top s of z + g
                noise[t] = gumbel(uniforms["u_slate"][n][t])
                perturbed = [z_i + g_i for z_i, g_i in zip(z.tolist(), noise[t], strict=True)]
                slates.append(top(perturbed, config.slate_size))
            elif config.training_slates == "random":  # a control: whatever their scores
                slates.append(top(gumbel(uniforms["u_slate"][n][t]), config.slate_size))
            else:  # a control: all K
                slates.append(list(range(len(z))))
            citations.append(ask(t, slates[t]))
    feedback = [
        [y if readable is None or readable[t][j] else None for j, y in enumerate(ys)]  # None teaches nothing
        for t, ys in enumerate(citations)
    ]
    e = Experience(n, query, memories, aggregate(config, slates, feedback))  # lines 10-12
    if config.objective != "reward":
        return slates, citations, listwise_loss(config, z, e.y_bar), e
    return slates, citations, ranking_loss(config, z, slates, feedback, noise), e  # lines 2, 7-9


def replay(config: Config, W_q, W_m, n, query, pool, uniforms):
    """Algorithm 3, lines 14 to 22: the chosen experiences, their slates and L_rep."""
    u_choice = uniforms["u_choice"][n] if config.replay_size and config.replay_choice == "random" else None
    chosen = choose_experiences(config, query, pool, u_choice)  # line 14
    slates, loss = [], query.new_zeros(())  # line 15
    for k, e in enumerate(chosen):  # line 16
        z, _ = scores(*adapt(config, W_q, W_m, e.query, e.memories))  # line 17
        if config.objective != "reward":
            loss = loss + listwise_loss(config, z, e.y_bar)
            slates.append([])
            continue
        g = gumbel(uniforms["u_replay"][n][k])
        g_draw = gumbel(uniforms["u_draw"][n][k]) if config.replay_slate == "softmax" else None
        slate = replay_slate(config, z, g, g_draw, e.y_bar)  # line 18
        r = [replay_reward(config, e.y_bar, i) for i in slate]  # line 19
        loss = loss + ranking_loss(config, z, [slate], [r], [g])  # line 20
        slates.append(slate)
    return chosen, slates, loss / max(len(chosen), 1)  # line 22, Eq. 16


def update(config: Config, state, weights, gradients):
    """Eq. 18 as printed ("sgd"), or Adam. Returns (weights, state); state is None before the first update."""
    if config.optimizer == "sgd":
        return tuple(W - config.learning_rate * G for W, G in zip(weights, gradients, strict=True)), None
    t, first, second = state or (0, [torch.zeros_like(W) for W in weights], [torch.zeros_like(W) for W in weights])
    t = t + 1
    first = [0.9 * m + (1 - 0.9) * G for m, G in zip(first, gradients, strict=True)]
    second = [0.999 * v + (1 - 0.999) * G**2 for v, G in zip(second, gradients, strict=True)]
    steps = [(m / (1 - 0.9**t)) / (torch.sqrt(v / (1 - 0.999**t)) + 1e-8) for m, v in zip(first, second, strict=True)]
    return tuple(W - config.learning_rate * S for W, S in zip(weights, steps, strict=True)), (t, first, second)


def train(
    config: Config, queries, memories, gold, order, uniforms, W_q, W_m, global_rate=None, readable=None, side=None
) -> Trajectory:
    """Train one replica: Algorithm 3 for every query in turn, one update a batch.

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
    out, buffer, weights, state = Trajectory(), [], (W_q, W_m), None
    cost = 2 * (1 + memories.shape[1]) * queries.shape[1] ** 2  # 1 + K vectors, forward and weight gradient
    for start in range(0, len(order), config.batch_size):
        W_q, W_m = (W.detach().clone().requires_grad_() for W in weights)
        batch, current, replayed = [], [], []
        for n, x in list(enumerate(order))[start : start + config.batch_size]:
            mask = None if readable is None else readable[n].tolist()
            p = None if side is None else side[x]
            given = queries[x], memories[x], gold[x], uniforms, global_rate, mask, p
            slates, citations, L_cur, e = current_query(config, W_q, W_m, n, *given)
            pool = buffer + ([e] if config.replay_current else [])  # r < n: those of earlier batches
            chosen, replay_slates, L_rep = replay(config, W_q, W_m, n, queries[x], pool, uniforms)
            batch.append(e)
            current.append(L_cur)
            replayed.append(L_rep)
            out.slates.append(slates)
            out.citations.append(citations)
            out.replayed.append([e.position for e in chosen])
            out.replay_slates.append(replay_slates)
            out.multiply_adds += cost * (1 + len(chosen))
        buffer += batch  # Eq. 14, Algorithm 3 line 12
        L_cur, L_rep = sum(current) / len(batch), sum(replayed) / len(batch)
        total = L_cur + config.replay_weight * L_rep  # Eq. 17
        gradients = (torch.zeros_like(W_q), torch.zeros_like(W_m))
        if total.requires_grad:  # otherwise nothing could be read
            gradients = torch.autograd.grad(total, (W_q, W_m))
        weights, state = update(config, state, (W_q.detach(), W_m.detach()), gradients)  # Eq. 18, line 23
        out.losses.append((L_cur.item(), L_rep.item(), total.item()))
        out.gradients.append(gradients)
        out.weights.append(weights)
    return out


# ---------------------------------------------------------------------------------------------- RMM


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
    slate = top([one.item() for one in perturbed], s)
    steps = [torch.zeros_like(W_q), torch.zeros_like(W_m)]
    for i, R in zip(slate, cite(slate), strict=True):
        gradients = torch.autograd.grad(torch.log(p[i]), (W_q, W_m), retain_graph=True)
        steps = [step + eta * (R - b) * G for step, G in zip(steps, gradients, strict=True)]  # eta (R - b) grad log P
    return slate, *(W.detach() + step for W, step in zip((W_q, W_m), steps, strict=True))


# ---------------------------------------------------------------------------------------------- Inference


def retrieve(
    config: Config, W_q, W_m, query, memories, gold, u_critic, explorer: bool, global_rate=None, u_slate=None, p=None
) -> list[int]:
    """The slate of one query at test time ("Training and Inference").

    Parameters
    ----------
    query, memories, gold : tensors [d], [K, d], bool [K]
    u_critic : [T, K], or [T - 1, K] where S^(T) is returned; needed with the Explorer only
    explorer : Explorer-assisted, or adapter-only
    u_slate : [K], needed with test_noise only
    p : scores of a reranker [K], as in explorer_slate
    """
    z, gram = scores(*adapt(config, W_q, W_m, query, memories))
    if not explorer:  # S^adapter = TopS z_i
        g = gumbel(u_slate) if config.test_noise else [0.0] * len(z)
        return top([z_i + g_i for z_i, g_i in zip(z.tolist(), g, strict=True)], config.slate_size)
    ask = critic(config, gold, u_critic, global_rate)
    if config.test_slate == "before":  # S^EAR = S^(T), after T - 1 critic calls
        _, _, counts, means = explore(config, z, gram, ask, rounds=config.rounds - 1, p=p)
        return explorer_slate(config, z, gram, counts, means, p)
    _, _, _, means = explore(config, z, gram, ask, p=p)  # after all T: cited first
    by_score = top(z.tolist(), len(z))
    return ([i for i in by_score if means[i] > 0] + [i for i in by_score if means[i] <= 0])[: config.slate_size]
