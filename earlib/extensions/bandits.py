"""Other ways to spend critic calls on a ranking: a posterior that models the critic, and controls.

All start from the scores of candidates and return a slate after every number of calls; `spend_calls` compares them on a
benchmark. Priors and stopping rules are fitted to the critic's citations of training questions, without gold labels.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from earlib.core.adapter import Adapter, gram
from earlib.core.critic import false_positive_rate
from earlib.core.explorer import explore, select_slate
from earlib.core.ordering import best
from earlib.experiments import measures, runs, settings
from earlib.extensions.folds import asker

UNEXPECTED = 1e-3  # chance of a citation in a slate without gold of a hypothesis: none is ever ruled out for good
TEMPERATURES = tuple(0.02 * 2 ** (step / 2) for step in range(9))  # of a prior, for `fit_prior`: 0.02 to 0.32
BOUNDS = (*(0.16 * 2 ** (-step / 8) for step in range(49)), 0.0)  # of a gain, for stopping early: 0.16 to 0.0025, none
CONTROL, BELOW = "equal_calls", "equal_calls_below"
BANDITS = (CONTROL, BELOW, "ucb", "posterior")


class Spent(NamedTuple):
    """Slates of N questions after 0, 1, ..., C critic calls."""

    slates: torch.Tensor  # [C + 1, N, s] candidate indices
    # [C + 1, N] expected increase, by one more call, of the posterior probability that the slate holds all gold
    gain: torch.Tensor | None = None


class Prior(NamedTuple):
    """Prior of which candidates are gold, and of how many."""

    temperature: float  # of the softmax of scores
    shares: tuple  # of questions with 0, 1 and 2 gold candidates


# -- the posterior -----------------------------------------------------------------------------------------------------


def hypotheses(depth):
    """All sets of at most two of the candidates, bool `[H, K]`: none, each one, each pair."""
    one = torch.eye(depth, dtype=torch.bool)
    first, second = torch.triu_indices(depth, depth, 1)
    return torch.cat([one.new_zeros(1, depth), one, one[first] | one[second]])


def log_prior(prior, scores, sets):
    """Log-probability of each hypothesis, `[N, H]`: P(n gold) times the chance that n draws without order yield it.

    With q = softmax(z / tau): P(none) = pi_0, P({i}) = pi_1 q_i, P({i, j}) = pi_2 q_i q_j / sum of q_k q_l over pairs.
    """
    log_q, K = (scores / prior.temperature).log_softmax(-1), scores.shape[-1]
    parts = (log_q @ sets.to(log_q.dtype).T).tensor_split((1, K + 1), -1)  # none, each one, each pair
    return torch.cat([part.log_softmax(-1) + math.log(pi) for part, pi in zip(parts, prior.shares, strict=True)], -1)


def citation_likelihood(slates, citations, sets, recall, precision):
    """Log-probability of a slate's citations under each hypothesis, `[..., H]`, by the critic's r and p.

    With n gold memories of the hypothesis in the slate, gold ones are cited with probability r, others with p_fp(n)
    (Appendix A.2). Citations are -1 or +1, `[..., s]`; 0 if unreadable, which is no evidence.
    """
    chance, said = _cited(slates, sets, recall, precision), citations.unsqueeze(-2)
    return torch.where(said > 0, chance, 1 - chance).log().where(said != 0, 0).sum(-1)


def _cited(slates, sets, recall, precision):
    """Chance of each member of a slate to be cited under each hypothesis, `[..., H, s]` float64."""
    gold = sets.T[slates].movedim(-1, -2)
    n = gold.sum(-1, keepdim=True).double()
    rate = false_positive_rate(n, slates.shape[-1] - n, recall, precision).clamp(UNEXPECTED, 1 - UNEXPECTED)
    return torch.where(gold, torch.tensor(recall).double(), rate)


def fit_prior(scores, asked, recall, precision):
    """The prior of maximum likelihood for citations of training questions, whose scores are `[N, K]`.

    For each of a few temperatures, expectation maximisation yields the shares; the temperature with the highest
    marginal likelihood of the pairs (slates, citations) in `asked` wins.
    """
    sets = hypotheses(scores.shape[-1])
    evidence = sum(citation_likelihood(*shown, sets, recall, precision) for shown in asked)
    sizes, reached = sets.sum(1), {}
    for temperature in TEMPERATURES:
        shares = (1 / 3, 1 / 3, 1 / 3)
        for _ in range(20):
            prior = Prior(temperature, shares)
            joint = log_prior(prior, scores.double(), sets) + evidence
            held = joint.softmax(-1).mean(0)
            shares = tuple(max(held[sizes == n].sum().item(), 1e-6) for n in range(3))
        reached[prior] = joint.logsumexp(-1).sum().item()
    return max(reached, key=reached.get)


def by_posterior(config, prior, scores, ask, calls):
    """Ask about the slate with the largest expected worth; return the candidates that are most probably gold.

    The worth of a slate is the probability that it holds every gold candidate; ties are in the retriever's order. The
    critic is `ask(call, slates) -> (citations, readable)`, each `[N, s]`.
    """
    sets, s = hypotheses(scores.shape[-1]), config.slate_size
    quality = config.recall / 100, config.precision / 100
    total, slates, gains = log_prior(prior, scores.double(), sets), [], []
    for call in range(calls + 1):
        likely = total.softmax(-1)
        slates.append(best(likely @ sets.double(), s))
        slate, expected = outlook(likely, sets, s, *quality)
        gains.append(expected - worth(likely, sets, s))
        if call < calls:
            citations, readable = ask(call, slate)
            total = total + citation_likelihood(slate, citations * readable, sets, *quality)
    return Spent(torch.stack(slates), torch.stack(gains))


def worth(weights, sets, size):
    """Weight of the hypotheses whose gold is all among the s candidates with the largest marginal weight, `[...]`."""
    kept = best(weights @ sets.to(weights.dtype), size).sort(-1).values
    depth = sets.shape[1]
    first, second = torch.triu_indices(size, size, 1)
    i, j = kept[..., first], kept[..., second]
    pairs = 1 + depth + i * (2 * depth - i - 1) // 2 + j - i - 1  # their numbers among `hypotheses`
    within = torch.cat([torch.zeros_like(kept[..., :1]), 1 + kept, pairs], -1)
    return weights.gather(-1, within).sum(-1)


def outlook(likely, sets, size, recall, precision):
    """The slate whose citations have the largest expected worth, `[N, s]`, and this worth, `[N]`.

    For a slate A and each of its 2^s possible citations y, V = sum over y of max over S of P(y and all gold in S). The
    slates compared are runs of s in the order of the posterior `likely`, `[N, H]`, that candidates are gold.
    """
    order = best(likely @ sets.double(), sets.shape[1])
    slates, values = order.unfold(1, size, 1), []
    for slate in slates.unbind(1):
        answers = likely.float().unsqueeze(1)  # [N, 2^s, H]
        for member in _cited(slate, sets, recall, precision).float().unsqueeze(1).unbind(-1):
            cited = answers * member
            answers = torch.cat([answers - cited, cited], 1)
        values.append(worth(answers, sets, size).sum(-1).double().round(decimals=6))
    most, first = torch.stack(values, 1).max(1)
    return slates[torch.arange(len(slates)), first], most


def by_confidence(config, scores, gram, ask, calls):
    """The paper's Explorer: after c calls it returns S^(c + 1), composed before its own feedback."""
    found = explore(config, scores, gram, ask, calls)
    last = select_slate(config, scores, gram, found.shown, found.cited)
    return Spent(torch.cat([found.slates.movedim(-2, 0), last[None]]))


def in_turn(config, scores, ask, calls, first=0):
    """Control: show the ranking s at a time from `first` on, again from the top after its end; order by citations.

    From the top on this is `measures.equal_calls` until all were shown once.
    """
    s, K = config.slate_size, scores.shape[-1]
    order, standing = best(scores, K), torch.zeros_like(scores)
    slates = []
    for call in range(calls + 1):
        slates.append(order.gather(-1, best(standing.gather(-1, order), s)))
        if call < calls:
            slate = order[..., (first + torch.arange(call * s, (call + 1) * s)) % K]
            citations, readable = ask(call, slate)
            standing = standing.scatter_add(-1, slate, (citations * readable).to(scores.dtype))
    return Spent(torch.stack(slates))


# -- stopping early ----------------------------------------------------------------------------------------------------


def stopped(gain, bound):
    """Calls of each question, 0 to C, if it stops as soon as the expected gain, `[C + 1, N]`, is below a bound."""
    enough = np.asarray(gain) < bound
    enough[-1] = True
    return enough.argmax(0)


def thrift(practice, share):
    """The smallest bound at which training questions that stop early spend at most a share of their calls."""
    spent = [stopped(practice.gain, bound).mean() / (len(practice.gain) - 1) for bound in BOUNDS]
    kept = [bound for bound, asked in zip(BOUNDS, spent, strict=True) if asked <= share]
    if not kept:
        raise ValueError(f"share = {share:g}: expected at least {spent[0]:.2f}, what is asked at the largest bound")
    return kept[-1]


# -- on a benchmark ----------------------------------------------------------------------------------------------------


class Spending(NamedTuple):
    """Results on the evaluation questions of a setting, each put to D critics with independent errors."""

    values: dict  # bandit -> [C + 1, D, R, E] recall@5 after each number of calls
    gain: np.ndarray  # [C + 1, D, R, E] as in `Spent`, by the posterior
    practice: list  # of each seed, the Spent of training questions
    queries: np.ndarray  # [R, E]

    def reached(self, bandit, count):
        """Recall@5 after some number of calls, the mean over the critics, `[1, R, E]`."""
        return self.values[bandit][[count]].mean(1)


class Early(NamedTuple):
    """Results of the posterior with early stopping, the mean over the critics."""

    values: np.ndarray  # [R, E] recall@5
    calls: np.ndarray  # [R, E] critic calls; NaN for questions without gold, as in `values`


def early(spending, bounds, most):
    """Stop the questions of each seed at its bound, one a seed, or after `most` calls."""
    return _until(spending, most, spending.gain, np.array(bounds)[:, None])


def informed(spending, most):
    """As `early`, by an oracle that stops once all gold is in the slate, or after `most` calls if it never is."""
    return _until(spending, most, 1 - spending.values["posterior"], 1)


def _until(spending, most, gain, bound):
    calls = stopped(gain[: most + 1], bound)
    values = np.take_along_axis(spending.values["posterior"], calls[None], 0)[0].mean(0)
    return Early(values, np.where(np.isnan(values), np.nan, calls.mean(0)))


def spend_calls(setting, config, chosen, calls, most, repeats=1, critic=None):
    """Spend calls on the ranking of the static retriever or of a trained adapter, by each of `BANDITS`.

    The prior of each seed is fitted to citations of a held-out part of its training questions, ranked by an adapter
    that was trained on the others; every candidate is asked about once. On the same questions `most` calls are spent
    for practice. Critic d of seed i draws its errors as seed i + d R, R the number of seeds.

    Parameters
    ----------
    setting : Setting
        With a random split, so that all seeds evaluate as many questions.
    config : Config
        The adapter's training, its Explorer, s, and the critic's stated precision and recall.
    chosen : list of dict or None
        Hyper-parameters of each seed's adapter; None for the static retriever.
    calls, most, repeats : int
        C, the most calls with early stopping, at most C, and D.
    critic : Config, optional
        Actual errors of the critic; default: as stated.
    """
    if calls < most:
        raise ValueError(f"calls = {calls}: expected at least {most}, the calls that stopping early is compared with")
    if repeats < 1:
        raise ValueError(f"repeats = {repeats}: expected at least 1 critic to put each question to")
    found = settings.candidates_of(setting, config.depth)
    kept_apart = setting.model_copy(update={"validate_on_training": True})
    parts, practices, queries, errs = [], [], [], critic or config

    def ranked(where, seed, asked):
        weights = chosen and runs.trained_weights(where, config.model_copy(update=chosen[seed]), [seed])
        return scored(found, weights, asked)

    for seed in range(setting.seeds):
        (train, evaluation), (_, part) = (settings.split(found.scopes, one, seed) for one in (setting, kept_apart))
        ask_of = partial(asker, errs, found.gold, seed, part, train=train)
        prior, practice = _fitted(config, ranked(kept_apart, seed, part)[0], ask_of, most)
        (scores, similarity), spent = ranked(setting, seed, evaluation), []
        for number in range(seed, setting.seeds * repeats, setting.seeds):
            ask = asker(errs, found.gold, number, evaluation, "test", calls, train)
            ways = [in_turn(config, scores, ask, calls, first) for first in (0, config.slate_size)]
            ways.append(by_confidence(config, scores, similarity, ask, calls))
            ways.append(by_posterior(config, prior, scores, ask, calls))
            slates = torch.stack([one.slates for one in ways])  # in the order of BANDITS
            asked = torch.from_numpy(evaluation).expand(slates.shape[:-1])
            spent.append((measures.measure(found, asked, slates)[0], ways[-1].gain))
        parts.append([np.stack(of_critics, -2) for of_critics in zip(*spent, strict=True)])
        practices.append(practice)
        queries.append(evaluation)
    values, gain = (np.stack(of_seeds, -2) for of_seeds in zip(*parts, strict=True))
    return Spending(dict(zip(BANDITS, values, strict=True)), gain, practices, np.stack(queries))


def _fitted(config, scores, ask_of, most):
    """The prior of a seed and its practice, on training questions that its adapter was not trained on."""
    shown = best(scores, config.depth).split(config.slate_size, dim=-1)
    ask = ask_of("train", len(shown))
    asked = [(slate, torch.mul(*ask(call, slate))) for call, slate in enumerate(shown)]
    prior = fit_prior(scores, asked, config.recall / 100, config.precision / 100)
    return prior, by_posterior(config, prior, scores, ask_of("test", most), most)


def scored(found, weights, queries):
    """Scores, `[N, K]`, and similarities, `[N, K, K]`, of the candidates of some questions.

    `weights` are W_q and W_m of one adapter, `[2, 1, d, d]`, or None for the frozen embeddings.
    """
    d = found.query.shape[1]
    of, place = Adapter(torch.zeros(2, 1, d, d) if weights is None else weights), found.index[queries][None]
    with torch.no_grad():
        scores, adapted, length = of.score(found.query[queries][None], found.bank[None])
        return scores.gather(-1, place)[0], gram(adapted, length, place)[0]
