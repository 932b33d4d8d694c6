"""Values that a process computes on first use and shares."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from bonobot.core.process_cache import compute_once

THREADS = 8


def test_concurrent_first_calls_compute_one_value() -> None:
    computed: list[int] = []
    all_called, two_compute = threading.Barrier(THREADS), threading.Barrier(2)

    @compute_once
    def compute() -> object:
        computed.append(1)
        with suppress(threading.BrokenBarrierError):  # only one thread computes
            two_compute.wait(0.2)
        return object()

    def call() -> object:
        all_called.wait(10)
        return compute()

    with ThreadPoolExecutor(THREADS) as pool:
        values = {future.result(20) for future in [pool.submit(call) for _ in range(THREADS)]}
    assert (len(values), len(computed)) == (1, 1)


def test_each_argument_has_its_own_value() -> None:
    computed: list[str] = []

    @compute_once
    def measure(text: str) -> int:
        computed.append(text)
        return len(text)

    assert [measure("a"), measure("bc"), measure("a")] == [1, 2, 1]
    assert computed == ["a", "bc"]


def test_a_failure_is_not_kept() -> None:
    outcomes = iter([ValueError("not yet"), None])

    @compute_once
    def compute() -> str:
        if error := next(outcomes):
            raise error
        return "done"

    with pytest.raises(ValueError, match="not yet") as caught:
        compute()
    assert caught.value.__context__ is None  # tracebacks begin with the function's error
    assert compute() == "done"


def test_a_value_may_need_another_of_the_same_function() -> None:
    @compute_once
    def count_down(number: int) -> int:
        return 0 if number == 0 else count_down(number - 1)

    assert count_down(3) == 0


def test_cleared_values_are_computed_again() -> None:
    numbers = iter((1, 2))

    @compute_once
    def compute() -> int:
        return next(numbers)

    assert (compute(), compute()) == (1, 1)
    compute.cache_clear()
    assert compute() == 2
