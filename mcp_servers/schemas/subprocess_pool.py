"""Check arguments inline or in a child process that can be killed.

Each process has up to two children for checks and one each to classify schemas and outline
documents, so that discovery doesn't delay calls. Children start on first use, are reused, and are
replaced when killed: a check has 250 ms of CPU time and one second of wall time.
"""

import asyncio
import atexit
import json
import logging
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem, ServiceUnavailable
from mcp_servers.schemas.classify_schema import SchemaVerdict, ValueSize
from mcp_servers.schemas.defaults import fill_defaults
from mcp_servers.schemas.validate_arguments import (
    InvalidArguments,
    SubprocessNeeded,
    check_value,
    measure_arguments,
)

logger = logging.getLogger(__name__)

CHILDREN = 2
MOST_WAITING = 64
CHECK_CPU_S, CHECK_TIMEOUT_S = 0.25, 1.0
CLASSIFY_CPU_S, CLASSIFY_TIMEOUT_S = 2.0, 5.0
OUTLINE_CPU_S, OUTLINE_TIMEOUT_S = 15.0, 30.0
MAX_WAITING_OUTLINES = 8
START_TIMEOUT_S = 30.0

Answer = dict[str, Any]
# Verdicts of output schemas by identity; each keeps its schema alive.
MAX_OUTPUT_VERDICTS = 1_024
_output_verdicts: dict[int, tuple[Any, SchemaVerdict]] = {}
_pools_lock = threading.Lock()


class ArgumentCheckTimeout(InvalidInput):
    """The arguments could not be checked within the time limit."""

    code = "validation_timeout"
    title = "The arguments couldn't be validated in time"


async def check_tool_arguments(schema: Any, arguments: Any, verdict: SchemaVerdict) -> ValueSize:
    """Check `arguments` and return their size; blocks the loop for about 70 ms at most.

    Raises `InvalidArguments`, `InvalidInput` (`schema_rejected`), `ArgumentCheckTimeout`
    (`validation_timeout`) or `ServiceUnavailable` (`validation_busy`). An omitted required property
    counts as provided if its schema has a default, and its default has a size.
    """
    arguments = fill_defaults(schema, arguments, only_required=True)
    size = measure_arguments(arguments)
    try:
        check_value(schema, arguments, verdict, size=size)
    except SubprocessNeeded:
        await _check_in_subprocess(schema, arguments)
    return size


async def check_json_value(schema: Any, value: Any, verdict: SchemaVerdict) -> None:
    """Check any JSON value; raises what `check_tool_arguments` raises."""
    size = measure_arguments({"": value})
    try:
        check_value(schema, value, verdict, size=size)
    except SubprocessNeeded:
        await _check_in_subprocess(schema, value)


async def _check_in_subprocess(schema: Any, arguments: Any) -> None:
    request = {"schema": schema, "arguments": arguments}
    answer = await _run_in_subprocess("check", request, cpu_s=CHECK_CPU_S, limit_s=CHECK_TIMEOUT_S)
    if answer is None:
        raise ArgumentCheckTimeout(
            format_message(
                "The arguments couldn't be validated against the tool's schema within "
                "{check_cpu_s:.0f} ms of CPU time.",
                check_cpu_s=CHECK_CPU_S * 1000,
            ),
            field="$",
            remedy="Send fewer or simpler arguments. If the problem persists, the cause is the "
            "tool's schema.",
        )
    if violation := answer["violation"]:
        raise InvalidArguments(
            violation.pop("detail"),
            field=violation.pop("field", ""),
            remedy=violation.pop("remedy", ""),
            extra={"errors": violation["errors"]} if "errors" in violation else None,
        )


async def find_output_violation(schema: Any, value: Any) -> str:
    """Return how a tool's structured result violates its output schema.

    Blank if it matches, or can't be checked within the limits.
    """
    verdict = _output_verdicts.get(id(schema), (None, None))[1]
    try:
        if verdict is None:
            (verdict,) = await classify_schemas([schema])
            if len(_output_verdicts) >= MAX_OUTPUT_VERDICTS:
                _output_verdicts.clear()
            _output_verdicts[id(schema)] = schema, verdict
        try:
            check_value(schema, value, verdict)
        except SubprocessNeeded:
            request = {"schema": schema, "arguments": value}
            answer = await _run_in_subprocess(
                "check", request, cpu_s=CHECK_CPU_S, limit_s=CHECK_TIMEOUT_S
            )
            violation = answer["violation"] if answer else None
            return f"{violation.get('field', '')}: {violation['detail']}" if violation else ""
    except InvalidArguments as violation:
        return f"{violation.field}: {violation}"
    except Problem:
        return ""
    return ""


async def classify_schemas(schemas: Sequence[Any]) -> list[SchemaVerdict]:
    """Classify schemas one by one in a child process; one that takes too long is refused."""
    verdicts = []
    for schema in schemas:
        answer = await _run_in_subprocess(
            "judge", {"schema": schema}, cpu_s=CLASSIFY_CPU_S, limit_s=CLASSIFY_TIMEOUT_S
        )
        answer = answer or {"verdict": "refused", "reason": "The schema takes too long to read."}
        verdicts.append(SchemaVerdict(answer["verdict"], answer["reason"]))
    return verdicts


def build_outline_in_child(
    text: str, *, document_url: str = "", operation_keys: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the outline of an OpenAPI document (`mcp_servers.openapi.document_outline`).

    Blocks for up to 30 s: never call it on the loop. Raises `InvalidInput` for a document that
    can't be parsed, or not in time, and `ServiceUnavailable` (`validation_busy`).
    """
    request = {
        "text": text,
        "document_url": document_url,
        "chosen": None if operation_keys is None else sorted(operation_keys),
    }
    answer = _submit("outline", request, OUTLINE_CPU_S, OUTLINE_TIMEOUT_S).result()
    if answer is None or "gave_up" in answer:
        raise InvalidInput(
            "The document takes too long to read.",
            code="too_large",
            field="document",
            remedy="Reduce it to the operations that you need.",
        )
    outline: dict[str, Any] = answer["outline"]
    if problem := outline.get("problem"):
        problem_fields = {
            name: problem.pop(name, "") for name in ("detail", "code", "field", "remedy")
        }
        raise InvalidInput(problem_fields.pop("detail"), **problem_fields, extra=problem)
    return outline


def close_pools() -> None:
    """Stop the children of this process; the next check starts new ones."""
    for key in [key for key in _pools if key[0] == os.getpid()]:
        _pools.pop(key).close()


async def _run_in_subprocess(
    task: str, request: dict[str, Any], *, cpu_s: float, limit_s: float
) -> Answer | None:
    """Return a child's answer, or None if it gave up or was killed."""
    answer = await asyncio.wrap_future(_submit(task, request, cpu_s, limit_s))
    return None if answer is None or "gave_up" in answer else answer


def _submit(
    task: str, request: dict[str, Any], cpu_s: float, limit_s: float
) -> "Future[Answer | None]":
    return _get_pool(task).submit({"task": task, "cpu_s": cpu_s, **request}, limit_s)


class _WorkerProcess:
    """A child process that handles one request at a time; used by one thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def send_request(self, line: bytes, limit_s: float) -> Answer | None:
        """Return the answer, or None on timeout, after which the process is killed."""
        process = self._ensure_started()
        try:
            if process is None or process.stdin is None:
                return None
            process.stdin.write(line)
            process.stdin.flush()
            answer = _read_answer(process, limit_s)
        except BrokenPipeError:
            answer = None
        if answer is None:
            logger.warning("A schema needed more than its time; its process was ended.")
            self.kill()
        return answer

    def kill(self) -> None:
        """Kill the process, if there is one, and reap it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in filter(None, (process.stdin, process.stdout)):
            with suppress(BrokenPipeError):  # unsent data
                pipe.close()

    def _ensure_started(self) -> "subprocess.Popen[bytes] | None":
        if self._process is not None and self._process.poll() is not None:
            self.kill()
        if self._process is None:
            # Only PYTHONPATH: our environment has secrets.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mcp_servers.schemas.subprocess_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
            if _read_answer(self._process, START_TIMEOUT_S) is None:
                self.kill()
        return self._process


class _WorkerPool:
    """Threads with a child process each, and a limit on waiting requests."""

    def __init__(self, children: int, max_waiting: int) -> None:
        self._threads = ThreadPoolExecutor(children, thread_name_prefix="schemas")
        self._slots = threading.BoundedSemaphore(children + max_waiting)
        self._local = threading.local()
        self._children: list[_WorkerProcess] = []

    def submit(self, request: dict[str, Any], limit_s: float) -> "Future[Answer | None]":
        """Queue a request; raise `ServiceUnavailable` (`validation_busy`) if too many wait."""
        if not self._slots.acquire(blocking=False):
            raise ServiceUnavailable(
                "Too many arguments are waiting for validation.",
                code="validation_busy",
                remedy="Try again shortly.",
                retry_after=1,
            )
        future = self._threads.submit(self._send_request, request, limit_s)
        future.add_done_callback(lambda _: self._slots.release())
        return future

    def close(self) -> None:
        """Wait for running requests, then stop the children."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for child in self._children:
            child.kill()

    def _send_request(self, request: dict[str, Any], limit_s: float) -> Answer | None:
        child = getattr(self._local, "child", None)
        if child is None:
            child = self._local.child = _WorkerProcess()
            self._children.append(child)
        return child.send_request(json.dumps(request).encode("ascii") + b"\n", limit_s)


_pools: dict[tuple[int, str], _WorkerPool] = {}
atexit.register(close_pools)


def _get_pool(task: str) -> _WorkerPool:
    """Return this process's pool for a task; a fork gets its own."""
    key = (os.getpid(), task)
    with _pools_lock:
        if key not in _pools:
            # Each discovery waits for one schema at a time, so at most one per server.
            sizes = {"judge": (1, sys.maxsize // 2), "outline": (1, MAX_WAITING_OUTLINES)}
            _pools[key] = _WorkerPool(*sizes.get(task, (CHILDREN, MOST_WAITING)))
        return _pools[key]


def _read_answer(process: "subprocess.Popen[bytes]", limit_s: float) -> Answer | None:
    """Return one line of JSON, or None on end of output or timeout."""
    assert process.stdout is not None  # noqa: S101  # opened as a pipe above
    descriptor, deadline, buffer = process.stdout.fileno(), time.monotonic() + limit_s, b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not buffer.endswith(b"\n"):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or not selector.select(remaining_s):
                return None
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return None
            buffer += chunk
    answer: Answer = json.loads(buffer)
    return answer
