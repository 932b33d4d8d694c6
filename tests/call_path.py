"""Record which product functions run for one governed call."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import governed_call
from bonobot.core.runtime import get_runtime
from bonobot.ledger.writer.writer_thread import close_writer

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("agents/", "bonobot/", "mcp_servers/")

# A function: the path of its module, and its qualified name.
Function = tuple[str, str]


def trace_call() -> set[Function]:
    """Make one warm call of `benchmarks.governed_call` and return the functions that it runs.

    All of the product's functions count that start between the call and its outcome, in the loop's
    thread and in the writer's. Comprehensions and lambdas are parts of the function around them.
    """
    close_writer()  # the next call starts its thread anew, with the profile function
    with governed_call.opened() as door, _record_functions() as functions:

        def make_calls(number: int) -> None:
            get_runtime().call(governed_call.spent, door.governed, calls=number, at_once=1)

        make_calls(3)
        functions.clear()
        make_calls(1)
        return set(functions)


@contextmanager
def _record_functions() -> Iterator[set[Function]]:
    functions: set[Function] = set()
    names: dict[Any, Function | None] = {}

    def record(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            code = frame.f_code
            if code not in names:
                names[code] = _name_function(code.co_filename, code.co_qualname)
            if (name := names[code]) is not None:
                functions.add(name)

    async def set_profile(function: Any) -> None:
        sys.setprofile(function)

    threading.setprofile(record)
    get_runtime().call(set_profile, record)
    try:
        yield functions
    finally:
        get_runtime().call(set_profile, None)
        threading.setprofile(None)
        close_writer()


def _name_function(path: str, name: str) -> Function | None:
    """Return the function that this code belongs to; None for code of others."""
    module = path.removeprefix(f"{ROOT}/")
    name = name.partition(".<locals>.<")[0]
    if not module.startswith(PACKAGES) or name.startswith("<"):
        return None
    return module, name
