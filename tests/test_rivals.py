"""Choices by folds and the rivals of an adapter, by plain loops."""

import numpy as np
import pytest

from earlib.core.config import ASSIMILATION, Config
from earlib.experiments import runs, settings
from earlib.experiments.settings import Setting
from earlib.extensions import folds, rivals

TOY = {"dataset": "toy", "seeds": 2}
HYBRID = Setting(**TOY, first_stage="hybrid", reranker="bm25")


@pytest.mark.parametrize("split", ["random", "conversation"])
def test_every_training_question_is_held_out_once(split):
    setting = Setting(**TOY, split=split)
    found, slates = settings.candidates_of(setting, 20), folds.held_out(setting, Config(**ASSIMILATION), 2)
    for seed in range(2):
        training, evaluation = settings.split(found.scopes, setting, seed)
        parts = folds.folds(found.scopes, setting, training, 2)
        assert sorted(np.concatenate(parts)) == sorted(training) and (slates[seed, evaluation] == -1).all()
        assert (slates[seed, training] >= 0).all()
        first, second = ({found.scopes[number] for number in part} for part in parts)
        assert split == "random" or not first & second
    assert (slates[0] != np.arange(5))[training].any()


def test_a_choice_by_folds_is_that_of_the_most_cited_candidates():
    setting, choices = Setting(**TOY), [{"learning_rate": 1e-9}, {"learning_rate": 1e-3}]
    found = settings.candidates_of(setting, 20)
    chosen, reached = folds.tuned(setting, "ear_adapter", choices, 2, **ASSIMILATION)
    training, _ = settings.split(found.scopes, setting, 1)
    cited = folds.citations(found.gold[training], 1)
    shares = [one[:5].sum() / one.sum() for one in cited if one.any()]
    assert reached[0][1] == pytest.approx(
        100 * np.mean(shares)
    )  # the adapter that stays as it is ranks as the retriever
    assert chosen == [choices[int(reached[1][seed] > reached[0][seed])] for seed in range(2)] == [choices[1]] * 2


def test_terms_are_those_of_plain_loops():
    found, (training, asked) = settings.candidates_of(HYBRID, 20), np.split(np.arange(60), [40])
    rng = np.random.default_rng(0)
    shown = rng.random(found.index.shape) < 0.5
    cited, index, query = shown & (rng.random(shown.shape) < 0.5), found.index.tolist(), found.query.double()
    terms = ("rate", "rate"), ("neighbours", 5)
    rate, similar = (rivals._term(found, *term, training, asked, cited, shown) for term in terms)
    for at, number in enumerate(asked):
        near = sorted(training, key=lambda other: -float(query[other] @ query[number]))[:5]  # noqa: B023
        for place, memory in enumerate(index[number]):
            times = [(cited[one, k], shown[one, k]) for one in training for k in range(20) if index[one][k] == memory]
            assert rate[at, place] == pytest.approx(sum(c for c, _ in times) / (1 + sum(s for _, s in times)))
            voted = [float(query[one] @ query[number]) for one in near for k in range(20)
                     if cited[one, k] and index[one][k] == memory]  # fmt: skip
            assert similar[at, place] == pytest.approx(sum(max(0, one) for one in voted) / 5, abs=1e-6)


def test_rivals_learn_what_the_adapter_was_taught():
    """A fixed weight beats no weight on words; without citations of a conversation its memories have no rate."""
    plain, how = Setting(**TOY), [{"learning_rate": 1e-3}] * 2
    said = rivals.said(plain, "ear_adapter", how, **ASSIMILATION)
    cited, shown = said
    assert not (cited & ~shown).any()
    for seed in range(2):
        training, evaluation = settings.split(settings.candidates_of(plain, 20).scopes, plain, seed)
        assert shown[seed, training].sum(1).min() >= 5 and not shown[seed, evaluation].any()
    static, ceiling = (np.nanmean(runs.answers(plain, one).values[0]) for one in ("retriever", "ceiling"))
    for terms in (["rate"], ["neighbours"], ["words", "rate"]):
        answers, chosen = rivals.run(settings.beside(plain, "bm25"), 20, said, terms, 3)
        assert static <= np.nanmean(answers.values[0]) <= ceiling and all(len(one) == len(terms) for one in chosen)
    apart = Setting(**TOY, split="conversation")
    said = rivals.said(apart, "ear_adapter", how, **ASSIMILATION)
    answers, _ = rivals.run(apart, 20, said, ["rate"], 3)
    assert np.array_equal(answers.values, runs.answers(apart, "retriever").values, equal_nan=True)
