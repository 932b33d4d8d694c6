"""The benchmark of a governed call wraps functions of the product by name."""

import inspect

from benchmarks.governed_call_stages import COUNTED_OPERATIONS, STAGES


def test_the_wrapped_functions_exist() -> None:
    missing = [
        f"{stage}: {function}"
        for stage, owner, function in (*STAGES, *COUNTED_OPERATIONS)
        if not hasattr(owner, function)
    ]
    assert not missing


def test_timed_stages_are_synchronous() -> None:
    for _stage, owner, function in STAGES:
        assert not inspect.iscoroutinefunction(getattr(owner, function)), function
