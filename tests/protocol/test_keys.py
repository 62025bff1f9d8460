"""Random keys: a draw depends on its name alone."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedaf.protocol import Draws, Key, generators_held, generators_released

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy

SEEDS = st.integers(0, 2**62 - 1)
PATHS = st.lists(st.integers(-(2**63), 2**63) | st.text(max_size=20), min_size=1, max_size=4)


@unhurried
@given(seed=SEEDS, path=PATHS)
def test_the_same_path_gives_the_same_key(seed, path):
    assert Key(seed).derive(*path) == Key(seed).derive(*path)


@unhurried
@given(seed=SEEDS, one=PATHS, other=PATHS)
def test_different_paths_give_different_keys(seed, one, other):
    assert (Key(seed).derive(*one) == Key(seed).derive(*other)) == (one == other)


@unhurried
@given(one=SEEDS, other=SEEDS, path=PATHS)
def test_different_seeds_give_different_keys(one, other, path):
    assert (Key(one).derive(*path) == Key(other).derive(*path)) == (one == other)


@unhurried
@given(seed=SEEDS, path=PATHS)
def test_every_key_fits_an_int64(seed, path):
    key = Key(seed).derive(*path)
    assert 0 <= key.value < 2**63
    assert int(torch.tensor(key.value)) == key.value


def test_a_number_and_its_text_are_different_purposes():
    assert Key(0).derive("round", 1) != Key(0).derive("round", "1")


def test_the_parts_of_a_path_do_not_run_together():
    assert len({Key(0).derive(*path) for path in (("ab",), ("a", "b"), ("", "ab"), ("ab", ""))}) == 4


def test_keys_are_the_same_on_every_machine():
    assert Key(0).derive("model").value == 6381212008994650540
    assert Key(7).derive("client", "client-3", 2, "condense").value == 5200671788826551260


def test_the_same_key_gives_the_same_draws():
    key = Key(3).derive("draws")
    assert torch.equal(torch.rand(8, generator=key.torch()), torch.rand(8, generator=key.torch()))
    assert np.array_equal(key.numpy().random(8), key.numpy().random(8))


def test_different_purposes_give_different_draws():
    init, draws = Key(3).derive("init"), Key(3).derive("draws")
    assert not torch.equal(torch.rand(8, generator=init.torch()), torch.rand(8, generator=draws.torch()))
    assert not np.array_equal(init.numpy().random(8), draws.numpy().random(8))


def test_draws_do_not_depend_on_what_was_drawn_before():
    def draw(round: int) -> torch.Tensor:
        return torch.rand(4, generator=Key(0).derive("round", round).torch())

    forwards = {round: draw(round) for round in (1, 2, 3)}
    torch.manual_seed(99)
    torch.rand(1000)
    backwards = {round: draw(round) for round in (3, 2, 1)}
    assert all(torch.equal(forwards[round], backwards[round]) for round in forwards)


def test_drawing_from_a_key_leaves_the_global_generators_alone():
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    torch.rand(4, generator=Key(1).torch())
    assert torch.equal(torch.rand(4), expected)


def test_a_seeded_block_draws_from_the_key_and_restores_the_global_generator():
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    with Key(1).seeded():
        first = torch.rand(4)
    assert torch.equal(torch.rand(4), expected)
    with Key(1).seeded("cpu"):
        assert torch.equal(torch.rand(4), first)
    assert torch.equal(first, torch.rand(4, generator=Key(1).torch()))


def test_a_seeded_block_that_raises_restores_the_global_generator_too():
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="inside"), Key(1).seeded():
        raise ValueError("inside")
    assert torch.equal(torch.rand(4), expected)


def test_blocks_of_draws_continue_each_other_and_restore_the_global_generator():
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    draws, others = Draws(Key(1)), Draws(Key(2))
    parts = []
    for _ in range(2):
        with draws.block("step"):
            parts.append(torch.rand(4))
        with others.block("step"):
            torch.rand(7)
    assert torch.equal(torch.rand(4), expected)
    with Key(1).seeded():
        assert torch.equal(torch.cat(parts), torch.cat([torch.rand(4), torch.rand(4)]))


def test_a_block_that_raises_restores_the_global_generator_too():
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match="ambiguous"), Draws(Key(1)).block("step"):
        bool(torch.rand(2) > 2)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("drawn", [0, 1])
def test_other_threads_wait_only_for_work_that_draws(drawn):
    draws = Draws(Key(1))
    with draws.block("step"):
        torch.rand(drawn)
    entered = threading.Event()

    def other():
        with Key(2).seeded():
            entered.set()

    thread = threading.Thread(target=other)
    with draws.block("step"):
        thread.start()
        assert entered.wait(0.2 if drawn else 60) == (not drawn)
    thread.join(60)
    assert entered.is_set()


def test_a_thread_that_releases_the_generators_has_them_again_afterwards():
    entered = threading.Event()

    def other():
        with generators_held():
            entered.set()

    with generators_held(), generators_held():
        thread = threading.Thread(target=other)
        thread.start()
        assert not entered.wait(0.1)
        with generators_released():
            assert entered.wait(60)
        thread.join(60)
        waiting = threading.Thread(target=other)
        entered.clear()
        waiting.start()
        assert not entered.wait(0.1)
    waiting.join(60)
    assert entered.is_set()
