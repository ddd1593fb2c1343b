"""Other ways to spend critic calls on a ranking: a posterior that knows the critic, Thompson sampling, a plain control.

All start from the scores of candidates, of whatever adapter, and return a slate after every number of calls. What they
reach on a benchmark, from the static ranking and from a trained adapter's, is compared in `on_questions`. What is
fitted there (`fit`, `patience`, `thrift`) is fitted to what the critic said of training questions; no gold label is
read.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import betaincinv

from earlib.core import adapter, randomness
from earlib.core.critic import SimulatedCritic, false_positive_rate
from earlib.core.explorer import explore, select_slate
from earlib.core.ordering import best
from earlib.experiments import measures, runs, settings

UNEXPECTED = 1e-3  # chance of a citation in a slate that holds no gold of a hypothesis: none is ever ruled out for good
TEMPERATURES = tuple(0.02 * 2 ** (step / 2) for step in range(9))  # of a prior, among which `fit` chooses: 0.02 to 0.32
BOUNDS = (*(0.16 * 2 ** (-step / 8) for step in range(49)), 0.0)  # of a gain, for stopping early: 0.16 to 0.0025, none


class Spent(NamedTuple):
    """Slates of N questions after 0, 1, ..., C critic calls."""

    slates: torch.Tensor  # [C + 1, N, s] candidate indices
    worth: torch.Tensor | None = None  # [C + 1, N] chance that the slate holds all gold candidates, by the posterior
    gain: torch.Tensor | None = None  # [C + 1, N] how much one call more is expected to raise it


class Prior(NamedTuple):
    """What is thought of candidates before anything is asked, and how many of them are gold."""

    temperature: float  # of the softmax of scores
    shares: tuple  # of questions with 0, 1 and 2 gold candidates


# -- the posterior -----------------------------------------------------------------------------------------------------


def hypotheses(depth):
    """Every set of at most two of the candidates, bool `[H, K]`: none, each one, each pair."""
    one = torch.eye(depth, dtype=torch.bool)
    first, second = torch.triu_indices(depth, depth, 1)
    return torch.cat([one.new_zeros(1, depth), one, one[first] | one[second]])


def log_prior(prior, scores, sets):
    """Log-probability of each hypothesis: P(n gold) times the chance that n draws without order give this set.

    With q = softmax(z / tau): P(none) = pi_0, P({i}) = pi_1 q_i, P({i, j}) = pi_2 q_i q_j / sum of q_k q_l over pairs.

    Parameters
    ----------
    prior : Prior
    scores : torch.Tensor
        `[N, K]`.
    sets : torch.Tensor
        As `hypotheses` makes them, `[H, K]`.

    Returns
    -------
    torch.Tensor
        `[N, H]`.
    """
    log_q = (scores / prior.temperature).log_softmax(-1)
    of_set = log_q @ sets.to(log_q.dtype).T
    K = scores.shape[-1]
    parts = of_set[..., :1], of_set[..., 1 : K + 1], of_set[..., K + 1 :]
    shares = (math.log(share) for share in prior.shares)
    return torch.cat([part.log_softmax(-1) + share for part, share in zip(parts, shares, strict=True)], -1)


def log_likelihood(slates, citations, sets, recall, precision):
    """Log-probability of a slate's citations under each hypothesis, by the critic's stated recall and precision.

    With n gold memories of the hypothesis in the slate, gold ones are cited with probability r, others with p_fp(n)
    (Appendix A.2). No citation at all is therefore a message too: nothing in the slate is gold, or all was missed.

    Parameters
    ----------
    slates, citations : torch.Tensor
        Candidate indices and their citations in {-1, +1}, `[..., s]`; 0 where none could be read: it says nothing.
    sets : torch.Tensor
        `[H, K]`.
    recall, precision : float
        r and p, fractions.

    Returns
    -------
    torch.Tensor
        `[..., H]` float64.
    """
    chance, said = _cited(slates, sets, recall, precision), citations.unsqueeze(-2)
    return torch.where(said > 0, chance, 1 - chance).log().where(said != 0, 0).sum(-1)


def _cited(slates, sets, recall, precision):
    """Chance of each member of a slate to be cited under each hypothesis, `[..., H, s]` float64."""
    gold = sets.T[slates].movedim(-1, -2)
    n = gold.sum(-1, keepdim=True).double()
    rate = false_positive_rate(n, slates.shape[-1] - n, recall, precision).clamp(UNEXPECTED, 1 - UNEXPECTED)
    return torch.where(gold, torch.tensor(recall).double(), rate)


def fit(scores, asked, recall, precision, rounds=20):
    """The prior under which citations of training questions are likeliest; no gold label is read.

    For each of a few temperatures the shares of questions with 0, 1 and 2 gold candidates are found by expectation
    maximisation; the temperature with the highest marginal likelihood of all citations wins.

    Parameters
    ----------
    scores : torch.Tensor
        Of training questions, `[N, K]`.
    asked : list of (slates, citations)
        What the critic said of them, `[N, s]` each, as in `log_likelihood`.
    recall, precision : float
    rounds : int

    Returns
    -------
    Prior
    """
    K = scores.shape[-1]
    sets = hypotheses(K)
    evidence = sum(log_likelihood(slates, citations, sets, recall, precision) for slates, citations in asked)
    sizes, reached = sets.sum(1), {}
    for temperature in TEMPERATURES:
        shares = (1 / 3, 1 / 3, 1 / 3)
        for _ in range(rounds):
            prior = Prior(temperature, shares)
            joint = log_prior(prior, scores.double(), sets) + evidence
            held = joint.softmax(-1).mean(0)
            shares = tuple(max(held[sizes == n].sum().item(), 1e-6) for n in range(3))
        reached[prior] = joint.logsumexp(-1).sum().item()
    return max(reached, key=reached.get)


def by_posterior(config, prior, scores, ask, calls):
    """Ask the slate that is expected to help most; return the candidates that are likeliest to be gold.

    After each call the probability of every hypothesis is known. The slate returned has the s candidates that are most
    probably gold, ties by the retriever's ranking. Its worth V is the probability that it holds every gold candidate.
    The next slate asked about is, of some, the one with the largest expected worth afterwards (`outlook`).

    Parameters
    ----------
    config : Config
        Gives s, and the critic's stated recall and precision.
    prior : Prior
    scores : torch.Tensor
        `[N, K]`.
    ask : callable
        `(call, slates) -> (citations, readable)`, each `[N, s]`.
    calls : int
        C.

    Returns
    -------
    Spent
    """
    sets, s = hypotheses(scores.shape[-1]), config.slate_size
    quality = config.recall / 100, config.precision / 100
    total, slates, worths, gains = log_prior(prior, scores.double(), sets), [], [], []
    for call in range(calls + 1):
        likely = total.softmax(-1)
        slates.append(best(likely @ sets.double(), s))
        slate, expected = outlook(likely, sets, s, *quality)
        worths.append(worth(likely, sets, s))
        gains.append(expected - worths[-1])
        if call < calls:
            citations, readable = ask(call, slate)
            total = total + log_likelihood(slate, citations * readable, sets, *quality)
    return Spent(torch.stack(slates), torch.stack(worths), torch.stack(gains))


def worth(weights, sets, size):
    """Weight of the hypotheses all of whose gold is among the candidates with the largest marginal weight, `[...]`."""
    held = weights @ sets.to(weights.dtype)
    return weights.gather(-1, _within(best(held, size), sets.shape[1])).sum(-1)


def _within(kept, depth):
    """Where `hypotheses` has those all of whose gold is among some candidates, `[..., s]`: their numbers."""
    kept = kept.sort(-1).values
    first, second = torch.triu_indices(kept.shape[-1], kept.shape[-1], 1)
    i, j = kept[..., first], kept[..., second]
    pairs = 1 + depth + i * (2 * depth - i - 1) // 2 + j - i - 1
    return torch.cat([torch.zeros_like(kept[..., :1]), 1 + kept, pairs], -1)


def outlook(likely, sets, size, recall, precision):
    """The slate whose citations are expected to make the slate returned worth most, and what it is then worth.

    For a slate A and each of its 2^s possible answers y, V = sum over y of max over S of P(y and all gold in S). The
    slates compared are runs of s in the order of how probably gold candidates are: the first s, the s from the second
    on, and so on.

    Parameters
    ----------
    likely : torch.Tensor
        `[N, H]`.
    sets : torch.Tensor
        `[H, K]`.
    size : int
        s.
    recall, precision : float

    Returns
    -------
    slates : torch.Tensor
        `[N, s]`.
    expected : torch.Tensor
        `[N]`.
    """
    order = best(likely @ sets.double(), sets.shape[1])
    found = None
    for start in range(sets.shape[1] - size + 1):
        slate = order[:, start : start + size]
        answers = likely.float().unsqueeze(1)  # [N, 2^s, H]
        for member in _cited(slate, sets, recall, precision).float().unsqueeze(1).unbind(-1):
            cited = answers * member
            answers = torch.cat([answers - cited, cited], 1)
        value = worth(answers, sets, size).sum(-1).double().round(decimals=6)
        if found is None:
            found, most = slate.clone(), value
        better = value > most
        found[better], most = slate[better], torch.maximum(most, value)
    return found, most


# -- the others --------------------------------------------------------------------------------------------------------


def by_confidence(config, scores, gram, ask, calls):
    """The paper's Explorer: after c calls it returns S^(c + 1), composed before its own feedback; as `by_posterior`."""
    found = explore(config, scores, gram, ask, calls)
    last = select_slate(config, scores, gram, found.shown, found.cited)
    return Spent(torch.cat([found.slates.movedim(-2, 0), last[None]]) if calls else last[None])


def by_thompson(config, scores, gram, ask, calls, uniforms):
    """The Explorer with a draw from each candidate's own posterior in the place of its upper-confidence value (Eq. 5).

    A candidate cited a times and rejected b times has usefulness 2 x - 1 with x from Beta(1 + a, 1 + b). The slate
    returned has the mean in the place of the draw.

    Parameters
    ----------
    config : Config
    scores, gram : torch.Tensor
        `[..., K]` and `[..., K, K]`.
    ask, calls
        As in `by_posterior`.
    uniforms : torch.Tensor
        A number in (0, 1) for each call and candidate, `[..., C, K]`.

    Returns
    -------
    Spent
    """
    plain = config.model_copy(update={"relevance": 1.0, "exploration": 0.0})
    shown, cited, nothing = (torch.zeros_like(scores) for _ in range(3))
    slates = []
    for call in range(calls + 1):
        up, down = 1 + (shown + cited) / 2, 1 + (shown - cited) / 2
        mean = config.relevance * scores + config.exploration * (2 * up / (up + down) - 1)
        slates.append(select_slate(plain, mean, gram, nothing, nothing))
        if call < calls:
            drawn = 2 * _beta(uniforms[..., call, :], up, down).to(scores.dtype) - 1
            value = config.relevance * scores + config.exploration * drawn
            slate = select_slate(plain, value, gram, nothing, nothing)
            citations, readable = ask(call, slate)
            weight = readable.to(scores.dtype)
            shown = shown.scatter_add(-1, slate, weight)
            cited = cited.scatter_add(-1, slate, weight * citations)
    return Spent(torch.stack(slates))


def _beta(uniforms, up, down):
    """Quantiles of Beta(up, down)."""
    return torch.from_numpy(betaincinv(up.double().numpy(), down.double().numpy(), uniforms.double().numpy()))


def in_turn(config, scores, ask, calls, first=0):
    """Control: show the ranking s at a time, from the top again after its end; then order by what was cited.

    A candidate's standing is the sum of its citations, 0 if it was never shown; equal ones keep the ranking's order.
    From the top on this is `measures.equal_calls` until all were shown once. With `first` = s it asks about what it
    would not return yet, before it asks about what it would. As `by_posterior`, without a posterior.
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
    """How many calls each question is asked that stops as soon as one more is expected to bring less than a bound.

    Parameters
    ----------
    gain : torch.Tensor
        As in `Spent`, `[C + 1, N]`.
    bound : float
        Of the probability that the slate returned holds all gold candidates.

    Returns
    -------
    torch.Tensor
        0 to C, `[N]`; C where the bound is never undercut.
    """
    enough = gain < bound
    enough[-1] = True
    return enough.to(torch.int8).argmax(0)


def patience(practice, loss):
    """The largest bound at which questions that stop early are expected to lose no more than that of all their calls.

    What is lost is told by the posterior itself, the mean worth of the slates returned, and not by gold labels.

    Parameters
    ----------
    practice : Spent
        Training questions, all of whose calls were spent `by_posterior`.
    loss : float
        Of the probability that a slate holds all gold candidates.

    Returns
    -------
    float
        One of `BOUNDS`; at the last, 0, no question stops.
    """
    kept = practice.worth[-1].mean() - loss
    return next((bound for bound in BOUNDS if _at(practice.worth, practice.gain, bound).mean() >= kept), BOUNDS[-1])


def thrift(practice, share):
    """The smallest bound at which questions that stop early spend no more than a share of their calls; as `patience`.

    Raises
    ------
    ValueError
        If they spend more at the largest bound.
    """
    spent = [stopped(practice.gain, bound).double().mean().item() / (len(practice.gain) - 1) for bound in BOUNDS]
    kept = [bound for bound, asked in zip(BOUNDS, spent, strict=True) if asked <= share]
    if not kept:
        raise ValueError(f"share = {share:g}: expected at least {spent[0]:.2f}, what is asked at the largest bound")
    return kept[-1]


def _at(values, gain, bound):
    """Values of each question when it stops, `[N]`."""
    return values.gather(0, stopped(gain, bound)[None])[0]


# -- on a benchmark ----------------------------------------------------------------------------------------------------

CONTROL, BELOW = "equal_calls", "equal_calls_below"
BANDITS = (CONTROL, BELOW, "ucb", "thompson", "posterior")


class Spending(NamedTuple):
    """What was reached on the evaluation questions of a setting, and what a bound for stopping can be chosen by.

    Every question is put to D critics that err independently of each other.
    """

    values: dict  # bandit -> [C + 1, D, R, E] recall@5 after each number of calls
    gain: np.ndarray  # [C + 1, D, R, E] as in `Spent`, by the posterior
    practice: list  # of each seed, the Spent of training questions
    queries: np.ndarray  # [R, E]

    def reached(self, bandit, count):
        """Recall@5 after some number of calls, the mean over the critics, `[1, R, E]`."""
        return self.values[bandit][[count]].mean(1)


class Early(NamedTuple):
    """What the posterior reaches that stops early, the mean over the critics."""

    values: np.ndarray  # [R, E] recall@5
    calls: np.ndarray  # [R, E] that were asked; NaN for questions without gold, as in `values`


def early(spending, bounds, most):
    """Stop the questions of each seed at its bound, after `most` calls at the latest.

    Parameters
    ----------
    spending : Spending
    bounds : sequence of float
        One a seed.
    most : int

    Returns
    -------
    Early
    """
    recall, gain = spending.values["posterior"][: most + 1], torch.from_numpy(spending.gain[: most + 1])
    calls = np.stack([stopped(gain[:, :, seed], bound).numpy() for seed, bound in enumerate(bounds)], 1)
    return _asked(recall, calls)


def told(spending, most):
    """As `early`, by one who is told when all gold is in the slate, and asks `most` times where it never is.

    One who has to guess spends more, or loses recall, unless it can tell on which questions asking is in vain.
    """
    recall = spending.values["posterior"][: most + 1]
    return _asked(recall, np.where((recall == 1).any(0), (recall == 1).argmax(0), most))


def _asked(recall, calls):
    """What is reached where each question, `[D, R, E]`, stops after its own number of calls."""
    values = np.take_along_axis(recall, calls[None], 0)[0].mean(0)
    return Early(values, np.where(np.isnan(values), np.nan, calls.mean(0)))


def on_questions(setting, config, chosen, calls, most, repeats=1, critic=None):
    """Spend calls on the ranking of the static retriever or of a trained adapter, in each of the ways of `BANDITS`.

    The prior of each seed is fitted to citations of the part kept from its training questions, each of whose candidates
    the critic was asked about once, ranked by an adapter that was trained on the others. On the same questions `most`
    calls are spent for practice. The evaluation questions are put to D critics, of which critic d of seed i draws its
    errors as seed i + d R, R the number of seeds: what one of them happens to miss is no property of a bandit.

    Parameters
    ----------
    setting : settings.Setting
        With a random split, so that all seeds evaluate as many questions.
    config : Config
        How the adapter learns; its Explorer, s, and the precision and recall that the critic states.
    chosen : list of dict or None
        Hyper-parameters that each seed has for itself, one a seed, if the ranking is a trained adapter's; None for
        that of the static retriever.
    calls : int
        C.
    most : int
        Calls that stopping early is held against.
    repeats : int
        D.
    critic : Config, optional
        How the critic that is asked really errs; default: as it states.

    Returns
    -------
    Spending

    Raises
    ------
    ValueError
        If there are fewer calls than `most`, or no critic to ask.
    """
    if calls < most:
        raise ValueError(f"calls = {calls}: expected at least {most}, which stopping early is held against")
    if repeats < 1:
        raise ValueError(f"repeats = {repeats}: expected at least 1 critic to put each question to")
    found = settings.candidates_of(setting, config.depth)
    kept_apart = setting.model_copy(update={"validate_on_training": True})
    taught, taught_less = (_weights(one, config, chosen) for one in (setting, kept_apart))
    values, gains, practices, queries = {name: [] for name in BANDITS}, [], [], []
    for seed in range(setting.seeds):
        (train, evaluation), (_, part) = (settings.split(found.scopes, one, seed) for one in (setting, kept_apart))
        asking = critic or config, found, seed, train
        prior, practice = _fitted(config, asking, taught_less[seed], part, most)
        ranked, spent = scored(found, taught[seed], evaluation), []
        for number in range(seed, setting.seeds * repeats, setting.seeds):
            spent.append(_spend(config, (critic or config, found, number, train), ranked, evaluation, calls, prior))
        for name in BANDITS:
            values[name].append(torch.stack([_recall(found, evaluation, one[name].slates) for one in spent], 1))
        gains.append(torch.stack([one["posterior"].gain for one in spent], 1))
        practices.append(practice)
        queries.append(evaluation)
    stacked = {name: torch.stack(parts, 2).numpy() for name, parts in values.items()}
    return Spending(stacked, torch.stack(gains, 2).numpy(), practices, np.stack(queries))


def _weights(setting, config, chosen):
    """W_q and W_m of each seed, `[2, 1, d, d]`, learned with what it chose; None where nothing is learned."""
    if chosen is None:
        return [None] * setting.seeds
    return [
        runs.trained_weights(setting, config.model_copy(update=choice), [seed]) for seed, choice in enumerate(chosen)
    ]


def _fitted(config, asking, weights, part, most):
    """The prior of a seed and what it practised, from training questions that its adapter was not taught."""
    scores, _ = scored(asking[1], weights, part)
    ask = _critic(*asking, part, "train", -(-config.depth // config.slate_size))
    shown = best(scores, config.depth).split(config.slate_size, dim=-1)
    asked = [(slate, torch.mul(*ask(call, slate))) for call, slate in enumerate(shown)]
    prior = fit(scores, asked, config.recall / 100, config.precision / 100)
    return prior, by_posterior(config, prior, scores, _critic(*asking, part, "test", most), most)


def _spend(config, asking, ranked, queries, calls, prior):
    """Every way to spend calls on the same questions, `ranked` as `scored` does, asking one and the same critic."""
    scores, similarity = ranked
    uniforms = torch.from_numpy(randomness.generator(asking[2], "thompson").random((len(queries), calls, config.depth)))

    def ask():
        return _critic(*asking, queries, "test", calls)

    return {
        CONTROL: in_turn(config, scores, ask(), calls),
        BELOW: in_turn(config, scores, ask(), calls, first=config.slate_size),
        "ucb": by_confidence(config, scores, similarity, ask(), calls),
        "thompson": by_thompson(config, scores, similarity, ask(), calls, uniforms),
        "posterior": by_posterior(config, prior, scores, ask(), calls),
    }


def scored(found, weights, queries):
    """Scores of the candidates of some questions, `[N, K]`, and their similarities, `[N, K, K]`, by one adapter.

    Parameters
    ----------
    found : Candidates
    weights : torch.Tensor or None
        W_q and W_m, `[2, 1, d, d]`; None for the embeddings as they are.
    queries : numpy.ndarray
        Question numbers, `[N]`.
    """
    d = found.query.shape[1]
    of = adapter.Adapter(torch.zeros(2, 1, d, d) if weights is None else weights)
    place = found.index[queries][None]
    with torch.no_grad():
        scores, adapted, length = of.score(found.query[queries][None], found.bank[None])
        return scores.gather(-1, place)[0], adapter.gram(adapted, length, place)[0]


def _critic(config, found, seed, train, queries, purpose, calls):
    """The simulated critic of a seed, asked about some questions a number of times; it errs as its `config` says.

    Where it has one rate of false positives for all slates, that is fixed by the training questions.
    """
    calibration = torch.from_numpy(train)[None] if config.errors == "global" else None
    critic = SimulatedCritic(config, found.gold, calibration)
    numbers = torch.from_numpy(queries)[None]
    rounds = config.model_copy(update={"rounds": max(1, calls)})
    uniforms = randomness.draw(rounds, (seed,), numbers, config.depth, len(found.query), purpose)

    def ask(call, slates):
        citations, readable = critic(numbers, slates[None], uniforms.critic[:, :, call])
        return citations[0], readable[0]

    return ask


def _recall(found, queries, slates):
    """Recall@5 of slates after each number of calls, `[C + 1, N]`."""
    of_all = torch.from_numpy(queries).expand(len(slates), -1)
    return torch.from_numpy(measures.measure(found, of_all, slates)[0])
