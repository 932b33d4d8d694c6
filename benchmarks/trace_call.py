"""Print the modules and functions of the product that run for one warm governed call.

    .venv/bin/python -m pytest benchmarks/trace_call.py -q -s

A table by module; `tests/architecture/test_call_path.py` limits the sums.
"""

import pytest
from rich.console import Console
from rich.table import Table

from tests.call_path import list_by_module, trace_call

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_path_of_a_call() -> None:
    modules = list_by_module(trace_call())
    table = Table("module", "functions", "names", title="One governed call")
    for module, names in modules.items():
        table.add_row(module, str(len(names)), ", ".join(names))
    table.add_row(str(len(modules)), str(sum(map(len, modules.values()))), "")
    Console(width=160).print(table)
