"""A fixed weight of the score by words, chosen on training questions."""

import numpy as np
import pytest
import torch

from earlib.experiments import measures, runs, settings
from earlib.experiments.settings import Setting
from earlib.extensions import fixed_weight

HYBRID = {"dataset": "toy", "seeds": 3, "first_stage": "hybrid", "reranker": "bm25"}
WEIGHTS = [0.0, 0.3, 3.0]


@pytest.mark.parametrize("split", ["random", "conversation"])
def test_each_seed_takes_the_weight_that_is_best_on_questions_it_kept_from_training(split):
    """By a plain loop over questions."""
    setting = Setting(**HYBRID, split=split)
    found = settings.candidates_of(setting, 30)
    answers, chosen = fixed_weight.run_weighted(setting, 30, WEIGHTS)

    def slate(number, w):
        cosine = (found.bank[found.index[number]].double() @ found.query[number].double()).tolist()
        score = [round(z + w * float(p), 9) for z, p in zip(cosine, found.side[number], strict=True)]
        return sorted(range(len(score)), key=lambda at: (-score[at], at))[:5]

    def recall(numbers, w):
        slates = torch.tensor([slate(number, w) for number in numbers])[None]
        return measures.measure(found, torch.from_numpy(numbers)[None], slates)[0, 0]

    for seed in range(3):
        train, evaluation = settings.split(found.scopes, setting, seed)
        part = train[int(0.8 * len(train)) :]
        means = [np.nanmean(recall(part, w)) for w in WEIGHTS]
        assert chosen[seed] == WEIGHTS[int(np.argmax(means))] and not set(part) & set(evaluation)
        held = answers.queries[seed] >= 0
        assert np.array_equal(answers.queries[seed, held], evaluation)
        assert np.array_equal(answers.values[0, seed, held], recall(evaluation, chosen[seed]), equal_nan=True)
        assert answers.slates[seed, held].tolist() == [slate(number, chosen[seed]) for number in evaluation]
        assert np.isnan(answers.values[:, seed, ~held]).all()


def test_no_weight_is_the_retriever():
    setting = Setting(**HYBRID)
    answers, _ = fixed_weight.run_weighted(setting.model_copy(update={"first_stage": "dense"}), 20, [0.0])
    static = runs.answers(Setting(dataset="toy", seeds=3), "retriever")
    assert np.array_equal(answers.values, static.values, equal_nan=True)
