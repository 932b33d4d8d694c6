"""Record which of the product's functions run for one governed call."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

from benchmarks import governed_call
from bonobot.core.runtime import get_runtime
from bonobot.ledger.writer.writer_thread import close_writer

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("agents/", "bonobot/", "mcp_servers/")
WARM_UP_CALLS = 3
RECORDED_CALLS = 5

# A function: the path of its module, and its qualified name.
Function = tuple[str, str]
# Once a second, on the same loop: not a part of the call that it falls into.
LOOP_TICK = ("bonobot/core/runtime.py", "Runtime._measure_loop_lag")


def trace_call() -> set[Function]:
    """Return the product's functions that run for one warm call of `benchmarks.governed_call`.

    These are all that start between `make_call` and its outcome, in the thread of the event loop
    and in the writer's. Comprehensions and lambdas are parts of the function around them. Of
    several calls, it is the one with the fewest: timers may fire during the others.
    """
    close_writer()  # so that the writer's next thread records, too
    with governed_call.prepare_calls() as calls, _recorded_functions() as functions:

        async def record_call() -> set[Function]:
            functions.clear()
            await calls.governed()
            return functions - {LOOP_TICK}

        async def make_calls() -> set[Function]:
            for _ in range(WARM_UP_CALLS):
                await calls.governed()
            # In tasks of their own, so that nothing around them is resumed meanwhile.
            recorded = [await asyncio.create_task(record_call()) for _ in range(RECORDED_CALLS)]
            return min(recorded, key=len)

        return get_runtime().call(make_calls)


def list_by_module(functions: set[Function]) -> dict[str, list[str]]:
    """Return the functions by module, sorted."""
    modules: dict[str, list[str]] = {}
    for module, name in sorted(functions):
        modules.setdefault(module, []).append(name)
    return modules


@contextmanager
def _recorded_functions() -> Iterator[set[Function]]:
    functions: set[Function] = set()
    known: dict[CodeType, Function | None] = {}

    def record(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in known:
            known[code] = _identify_function(code)
        if (function := known[code]) is not None:
            functions.add(function)

    async def start() -> None:
        sys.setprofile(record)

    async def stop() -> None:
        sys.setprofile(None)

    threading.setprofile(record)
    get_runtime().call(start)
    try:
        yield functions
    finally:
        get_runtime().call(stop)
        threading.setprofile(None)
        close_writer()


def _identify_function(code: CodeType) -> Function | None:
    """Return the function that the code belongs to; None if it isn't the product's."""
    module = code.co_filename.removeprefix(f"{ROOT}/")
    name = code.co_qualname.partition(".<locals>.<")[0]
    if not module.startswith(PACKAGES) or name.startswith("<"):
        return None
    return module, name
