"""Several clients at the same time: the same results, in the same order, as one after the other."""

import threading
import time
from dataclasses import replace

import pytest
import torch

import fedaf
from fedaf.engine import EagerEngine
from fedaf.protocol import generators_released
from support.errors import raises
from support.tiny import AVERAGING

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
LITTLE = lambda: 0  # noqa: E731 (memory that an item needs)
ENGINE = EagerEngine(CPU, memory_budget=1000, clients_at_once=2)
#: Without the methods whose clients work as those of FedAvg do.
WITH_OWN_WORK = [name for name in AVERAGING if name not in ("fednova", "fedavgm", "fedadam", "fedyogi")]
RUN = {"dataset": "digits", "clients": 3, "alpha": 1.0, "rounds": 2, "local_epochs": 1, "device": "cpu"}


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_and_two_items_run_at_the_same_time():
    both = threading.Barrier(2, timeout=60)

    def work(item, engine):
        with generators_released():
            both.wait()  # passes only if another item is at work
            time.sleep(0.1 * (item == 0))
        return item

    assert list(ENGINE.each(work, range(4), LITTLE)) == [0, 1, 2, 3]


def test_work_that_may_draw_from_the_global_generator_runs_alone():
    at_work = []

    def work(item, engine):
        at_work.append(item)
        time.sleep(0.02)
        assert at_work == [item]
        at_work.remove(item)

    list(ENGINE.each(work, range(4), LITTLE))


def test_threads_and_memory_are_divided(four_threads):
    found = list(ENGINE.each(lambda _, engine: (torch.get_num_threads(), engine.budget), range(3), LITTLE))
    assert found == [(2, 500)] * 3
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("given", "items", "at_once"), [(None, 9, 4), (None, 3, 3), (3, 9, 3), (8, 9, 8)])
def test_a_cpu_works_for_one_client_per_thread(given, items, at_once, four_threads):
    engine, all_at_work = replace(ENGINE, clients_at_once=given), threading.Barrier(at_once, timeout=60)

    def work(item, _):
        with generators_released():
            if item < at_once:
                all_at_work.wait()
        return threading.get_ident()

    assert len(set(engine.each(work, range(items), LITTLE))) == at_once


@pytest.mark.parametrize("engine", [replace(ENGINE, clients_at_once=1), replace(ENGINE, device=CUDA)])
def test_one_at_a_time_needs_no_other_thread(engine):
    found = list(engine.each(lambda _, engine: (threading.get_ident(), engine.budget), range(3), LITTLE))
    assert found == [(threading.get_ident(), 1000)] * 3


def test_progress_counts_the_steps_of_all_items_at_work():
    seen = []
    first_ended = threading.Event()

    def work(item, engine):
        if item == 0:
            engine.tick(1, 2)
            first_ended.set()
        else:
            with generators_released():
                first_ended.wait(60)
            engine.tick(2, 2)

    list(ENGINE.watch(lambda *progress: seen.append(progress)).each(work, range(2), LITTLE))
    assert seen[0] == (1, 2)
    assert seen[1] in [(3, 2), (2, 2)]  # the second if item 0 was already returned


def test_an_error_stops_the_others_and_is_raised():
    ticks = []

    def work(item, engine):
        if item == 0:
            raise ZeroDivisionError
        for step in range(10_000):
            engine.tick(step, 10_000)
            ticks.append(step)
            with generators_released():
                time.sleep(0.001)

    threads = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError):
        list(ENGINE.each(work, range(5), LITTLE))
    assert len(ticks) < 10_000
    assert torch.get_num_threads() == threads
    assert not [t for t in threading.enumerate() if t.name.startswith("fedaf-work")]


def test_the_deadline_holds_in_every_thread():
    def work(item, engine):
        for step in range(10_000):
            engine.tick(step, 10_000)
            time.sleep(0.001)

    with raises("FEDAF-DEADLINE"):
        list(ENGINE.until(time.monotonic() + 0.05).each(work, range(3), LITTLE))


def test_work_whose_memory_does_not_fit_the_budget_runs_with_fewer_at_a_time():
    for item_bytes, budget in ((0, 500), (400, 500), (501, 1000), (2000, 1000)):
        assert list(ENGINE.each(lambda _, engine: engine.budget, range(2), lambda n=item_bytes: n)) == [budget] * 2


def test_an_abandoned_iteration_ends_its_threads():
    def work(item, engine):
        for step in range(10_000):
            engine.tick(step, 10_000)
            with generators_released():
                time.sleep(0.001 * (item > 0))
            if item == 0:
                return

    results = ENGINE.each(work, range(3), LITTLE)
    next(results)
    results.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("fedaf-work")]


@pytest.mark.parametrize("model", [None, "support.zoo:dropout"])
@pytest.mark.parametrize("method", WITH_OWN_WORK)
def test_a_run_has_the_same_numbers_as_with_one_client_at_a_time(method, model):
    alone, together = (
        fedaf.run(**RUN, method=method, model=model, settings={"run.clients_at_once": at_once}).model.state_dict()
        for at_once in (1, 3)
    )
    assert [name for name in alone if not torch.equal(alone[name], together[name])] == []
