"""Random numbers belong to a seed and a purpose."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from earlib.core import randomness
from earlib.core.config import Config

ORDER = torch.tensor([[4, 0, 2, 4, 1]])


def drawn(seeds, purpose="train", **changes):
    return randomness.draw(Config(**changes), seeds, ORDER.expand(len(seeds), -1), 6, 5, purpose)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=4, unique=True))
def test_a_seed_s_numbers_do_not_depend_on_its_company(seeds):
    among, alone = drawn(seeds, replay_choice="random"), drawn(seeds[1:2], replay_choice="random")
    for several, one in zip(among, alone, strict=True):
        assert torch.equal(several[1], one[0])


def test_seeds_and_purposes_have_streams_of_their_own():
    one, other, test = drawn((0,)), drawn((1,)), drawn((0,), "test")
    assert not torch.equal(one.critic, other.critic)
    assert not torch.equal(one.critic, test.critic)
    assert all(u is None or (u.dtype == torch.float64 and (u > 0).all() and (u < 1).all()) for u in (*one, *test))


def test_persistent_errors_are_one_number_a_query_and_memory():
    train, test = drawn((3,), errors="persistent"), drawn((3,), "test", errors="persistent")
    assert torch.equal(train.critic[0, 0], train.critic[0, 3])  # query 4 comes twice
    assert torch.equal(train.critic[0, :, 0], train.critic[0, :, 3])  # and every round
    assert torch.equal(train.critic, test.critic)


def test_a_part_holds_the_numbers_of_its_positions():
    whole = drawn((0,))
    part = whole.part(2, 4)
    assert torch.equal(part.replay, whole.replay[:, 2:4]) and part.critic.shape[1] == 2
