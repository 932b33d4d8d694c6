"""A governed call takes a short path through the product.

The path is what `tests.call_path.trace_call` records. Its limits only go down.
"""

import pytest

from tests.call_path import list_by_module, trace_call

pytestmark = pytest.mark.django_db(transaction=True)

MAX_MODULES = 45
MAX_FUNCTIONS = 193


def test_a_governed_call_runs_few_modules_and_functions() -> None:
    functions = trace_call()
    modules = list_by_module(functions)
    lines = [f"{module}: {', '.join(names)}" for module, names in modules.items()]
    hint = "make the path of a call shorter; it runs:\n" + "\n".join(lines)
    assert len(modules) <= MAX_MODULES, hint
    assert len(functions) <= MAX_FUNCTIONS, hint
    # The steps of `agents/calls/pipeline.py` are among them.
    assert {
        ("agents/calls/pipeline.py", "make_call"),
        ("agents/calls/admit.py", "build_admission"),
        ("agents/calls/forward.py", "forward_call"),
        ("agents/calls/settle_call.py", "settle_call"),
        ("bonobot/ledger/writer/writer_thread.py", "LedgerWriter._commit_batch"),
    } <= functions
