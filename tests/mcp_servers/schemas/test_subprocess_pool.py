"""Costly checks run in a process with a timeout and don't block the event loop."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bonobot.core.problems import Problem
from mcp_servers.schemas import InvalidArguments, classify_schema, subprocess_pool
from tests.mcp_servers.schemas.test_classify_schema import doubling

pytestmark = pytest.mark.anyio

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"child": {"$ref": "#"}, "value": {"type": "integer"}},
    "additionalProperties": False,
}
BACKTRACKING = {"type": "object", "properties": {"a": {"pattern": "^(?=a)(a+)+$"}}}
NEVER = {"a": "a" * 60 + "!"}


@pytest.fixture(autouse=True)
def _no_child_stays() -> Iterator[None]:
    yield
    subprocess_pool.close_pools()


async def check(schema: Any, arguments: Any) -> None:
    await subprocess_pool.check_tool_arguments(schema, arguments, classify_schema(schema))


async def test_a_check_that_fits_inline_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_pool, "_get_pool", None)
    await check({"type": "object"}, {"a": 1})
    with pytest.raises(InvalidArguments):
        await check({"type": "object", "required": ["a"]}, {})


async def test_a_recursive_schema_is_checked_in_a_subprocess() -> None:
    await check(TREE, {"child": {"child": {"value": 1}}})
    with pytest.raises(InvalidArguments) as caught:
        await check(TREE, {"child": {"child": {"value": "x"}}})
    assert caught.value.field == "$.child.child.value"
    assert caught.value.remedy


async def test_large_arguments_are_checked_in_a_subprocess() -> None:
    rows = [{"n": n} for n in range(5_000)]
    schema = {"type": "object", "properties": {"rows": {"items": {"required": ["n"]}}}}
    await check(schema, {"rows": rows})
    with pytest.raises(InvalidArguments) as caught:
        await check(schema, {"rows": [*rows, {}]})
    assert caught.value.field == "$.rows[5000].n"


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [(BACKTRACKING, NEVER), (doubling(24), {"a": 1})],
    ids=["regular expression", "branches"],
)
async def test_an_endless_check_is_ended(schema: Any, arguments: Any) -> None:
    with pytest.raises(Problem) as caught:
        await check(schema, arguments)
    assert caught.value.code == "validation_timeout"
    await check(TREE, {"child": {}})


async def test_the_event_loop_runs_while_checks_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_pool, "CHECK_CPU_S", 0.05)
    ticks = 0
    done = asyncio.Event()

    async def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            await asyncio.sleep(0)
            ticks += 1

    async def run_checks() -> list[BaseException | None]:
        errors = await asyncio.gather(
            *(check(BACKTRACKING, NEVER) for _ in range(4)), return_exceptions=True
        )
        done.set()
        return errors

    _, refusals = await asyncio.gather(tick(), run_checks())
    assert [getattr(refusal, "code", None) for refusal in refusals] == ["validation_timeout"] * 4
    assert ticks > 1_000


async def test_too_many_waiting_checks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess_pool.close_pools()
    monkeypatch.setattr(subprocess_pool, "CHILDREN", 1)
    monkeypatch.setattr(subprocess_pool, "MOST_WAITING", 1)
    errors = await asyncio.gather(*(check(TREE, {}) for _ in range(5)), return_exceptions=True)
    assert (
        sorted(getattr(problem, "code", "") for problem in errors)
        == [""] * 2 + ["validation_busy"] * 3
    )


async def test_schemas_are_classified_in_a_subprocess_too() -> None:
    classifications = await subprocess_pool.classify_schemas(
        [{"type": "object"}, TREE, {"type": "any"}]
    )
    assert [classification.verdict for classification in classifications] == [
        "inline",
        "confined",
        "refused",
    ]
    assert classifications[1] == classify_schema(TREE)


async def test_concurrent_discoveries_dont_delay_checks() -> None:
    costly = [{"type": "object", "properties": {f"p{n}": {} for n in range(500)}}]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(subprocess_pool.classify_schemas(costly * 2)) for _ in range(20)]
        await check(TREE, {"child": {}})
        assert not all(task.done() for task in tasks)
        for task in tasks[2:]:
            task.cancel()
    assert [judgement.verdict for judgement in tasks[0].result()] == ["confined", "confined"]


async def test_the_subprocess_inherits_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-value")
    await check(TREE, {})
    children = [
        child._process
        for child in subprocess_pool._pools[os.getpid(), "check"]._children
        if child._process is not None
    ]
    assert children
    for child in children:
        environment = Path(f"/proc/{child.pid}/environ")
        if environment.exists():
            assert b"canary" not in environment.read_bytes()


async def test_closing_the_pool_ends_the_subprocesses() -> None:
    await check(TREE, {})
    processes = [child._process for child in subprocess_pool._pools[os.getpid(), "check"]._children]
    subprocess_pool.close_pools()
    assert all(process is not None and process.poll() is not None for process in processes)
    await check(TREE, {})
