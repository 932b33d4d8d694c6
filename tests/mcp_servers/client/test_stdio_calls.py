"""Calls over stdio to children that crash, hang, and send too much."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from mcp_servers.client import child_process
from mcp_servers.client.child_process import GROUP
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import (
    HOLDER,
    call,
    count_starts,
    failure,
    faulty_stdio,
    text_of,
    until,
)

LIMIT_S = 0.2


# --- calls


async def test_results_are_returned_raw_with_unknown_fields(connections: ConnectionPool):
    result = await call(connections, faulty_stdio(), "echo", a="ü")
    assert result["x-unknown"] == [1]
    assert json.loads(text_of(result)) == {"a": "ü"}


@pytest.mark.parametrize("era", ["both", "handshake"])
async def test_a_call_that_takes_too_long_leaves_the_connection_usable(
    connections: ConnectionPool, era: str
):
    endpoint = faulty_stdio(era)
    await call(connections, endpoint, "echo")
    error = await failure(call(connections, endpoint, "hang", timeout_s=LIMIT_S))
    assert (error.code, error.sent, error.retryable) == ("call_timeout", True, False)
    assert "tools/call" in str(error)
    cancelled = json.loads(text_of(await call(connections, endpoint, "cancellations")))
    assert len(cancelled) == 1
    assert count_starts(connections, endpoint) == 1


async def test_the_timeout_of_the_endpoint_is_the_default(connections: ConnectionPool):
    error = await failure(call(connections, faulty_stdio(read_s=LIMIT_S), "hang"))
    assert error.code == "call_timeout"


async def test_a_canceled_call_is_canceled_at_the_server(connections: ConnectionPool):
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    pending = asyncio.ensure_future(call(connections, endpoint, "hang"))
    await asyncio.sleep(0)  # so that it is sent
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    assert json.loads(text_of(await call(connections, endpoint, "cancellations")))


async def test_unexpected_responses_are_dropped(connections: ConnectionPool):
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")  # so that the limit doesn't include the start
    error = await failure(call(connections, endpoint, "wrong_id", timeout_s=LIMIT_S))
    assert error.code == "call_timeout"
    assert text_of(await call(connections, endpoint, "twice")) == "first"
    assert text_of(await call(connections, endpoint, "echo")) == "{}"


async def test_other_text_on_stdout_is_skipped(connections: ConnectionPool):
    assert text_of(await call(connections, faulty_stdio(), "garbage")) == "after the garbage"


async def test_a_response_within_a_batch_is_found(connections: ConnectionPool):
    assert text_of(await call(connections, faulty_stdio(), "batch")) == "in a batch"


async def test_concurrent_calls_get_their_own_responses(connections: ConnectionPool):
    endpoint = faulty_stdio()
    calls = [call(connections, endpoint, "echo", n=n) for n in range(50)]
    answers = await asyncio.gather(*calls)
    assert [json.loads(text_of(answer))["n"] for answer in answers] == list(range(50))


async def test_an_error_of_the_server_keeps_its_code_and_data(connections: ConnectionPool):
    error = await failure(
        call(connections, faulty_stdio(), "refuse", code=-32050, text="no\u202e way")
    )
    assert (error.code, error.rpc_code, error.rpc_data) == ("upstream_error", -32050, {"why": 1})
    assert "no⟨U+202E⟩ way" in str(error)


async def test_progress_reaches_the_caller_in_order_and_truncated(connections: ConnectionPool):
    reports: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))

    endpoint = faulty_stdio()
    await call(connections, endpoint, "progress", on_progress=on_progress, steps=4)
    assert [step for step, _, _ in reports] == [0, 1, 2, 3]
    assert {total for _, total, _ in reports} == {9}
    assert {len(message or "") for _, _, message in reports} == {1000}
    assert text_of(await call(connections, endpoint, "progress", steps=1)) == "progressed"


async def test_progress_that_comes_too_fast_is_dropped_but_never_the_response(
    connections: ConnectionPool,
):
    reports: list[float] = []
    endpoint, caught_up = faulty_stdio(), asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        reports.append(progress)
        await caught_up.wait()

    slow = call(connections, endpoint, "progress", on_progress=on_progress, steps=2000)
    pending = asyncio.ensure_future(slow)
    await until(lambda: reports)
    await call(connections, endpoint, "echo")  # which the server answers after all reports
    caught_up.set()
    assert text_of(await pending) == "progressed"
    assert len(reports) == 257


# --- crashes


@pytest.mark.parametrize("tool", ["crash", "kill_itself"])
async def test_a_call_that_kills_the_server_isnt_repeated(connections: ConnectionPool, tool: str):
    endpoint = faulty_stdio()
    error = await failure(call(connections, endpoint, tool))
    assert (error.code, error.sent) == ("server_crashed", True)
    assert count_starts(connections, endpoint) == 1


async def test_a_server_that_closes_its_output_has_ended(
    connections: ConnectionPool, monkeypatch: pytest.MonkeyPatch
):
    # Without the helper processes of a namespace, which would keep the output open.
    monkeypatch.setattr(child_process, "choose_containment", lambda: GROUP)
    error = await failure(call(connections, faulty_stdio(), "close_output"))
    assert error.code == "server_crashed"
    assert "closed its output" in str(error)


async def test_a_crash_is_reported_with_its_exit_status_and_stderr(connections: ConnectionPool):
    error = await failure(call(connections, faulty_stdio(), "crash", status=7))
    assert "exited with status 7" in str(error)
    assert "out of cheese" in str(error)


async def test_after_a_crash_there_is_exactly_one_reconnect(connections: ConnectionPool):
    endpoint = faulty_stdio()
    await failure(call(connections, endpoint, "crash"))
    assert text_of(await call(connections, endpoint, "echo")) == "{}"
    await failure(call(connections, endpoint, "crash"))
    error = await failure(call(connections, endpoint, "echo"))
    assert (error.code, error.sent) == ("server_crashed", False)


async def test_a_server_that_never_starts_is_started_twice_at_most(connections: ConnectionPool):
    endpoint = faulty_stdio("nonsense")
    endpoint = replace(endpoint, args=("-c", "import sys; sys.exit(3)"))
    for _ in range(3):
        assert (await failure(call(connections, endpoint, "x"))).code == "server_crashed"


async def test_a_longer_run_allows_another_reconnect(connections: ConnectionPool, clock: Any):
    endpoint = faulty_stdio()
    for _ in range(3):
        await failure(call(connections, endpoint, "crash"))
        clock.now += 61
    assert text_of(await call(connections, endpoint, "echo")) == "{}"


async def test_a_changed_configuration_resets_the_number_of_crashes(connections: ConnectionPool):
    endpoint = faulty_stdio()
    await failure(call(connections, endpoint, "crash"))
    await failure(call(connections, endpoint, "crash"))
    assert (await failure(call(connections, endpoint, "echo"))).code == "server_crashed"
    changed = replace(endpoint, env={"A": "b"})
    assert json.loads(text_of(await call(connections, changed, "environment")))["A"] == "b"


async def test_a_listing_is_repeated_after_a_crash(connections: ConnectionPool):
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    crashing = asyncio.ensure_future(failure(call(connections, endpoint, "crash")))
    await asyncio.sleep(0)  # so that the server is asked to crash first
    result = await connections.send_request(endpoint, "tools/list", {}, holder=HOLDER)
    assert result["tools"]
    assert "fatal" not in connections.get_stderr_tail(endpoint.server_id)  # of another child
    assert (await crashing).code == "server_crashed"


async def test_every_waiting_call_fails_at_a_crash(connections: ConnectionPool):
    endpoint = faulty_stdio()
    await call(connections, endpoint, "echo")
    pending = [asyncio.ensure_future(failure(call(connections, endpoint, "hang"))) for _ in "abc"]
    await failure(call(connections, endpoint, "crash"))
    assert {error.code for error in await asyncio.gather(*pending)} == {"server_crashed"}


# --- limits


@pytest.mark.parametrize("arguments", [{}, {"id_last": True}, {"id_unknown": True}])
async def test_a_line_of_ten_megabytes_fails_only_its_call(
    connections: ConnectionPool, arguments: dict[str, bool]
):
    endpoint = faulty_stdio()
    error = await failure(call(connections, endpoint, "long_line", **arguments))
    assert error.code == "response_too_large"
    assert "4,194,304 bytes" in str(error)
    assert text_of(await call(connections, endpoint, "echo")) == "{}"
    assert count_starts(connections, endpoint) == 1


async def test_a_long_notification_affects_no_call(connections: ConnectionPool):
    assert text_of(await call(connections, faulty_stdio(), "long_notification")) == (
        "after the notification"
    )


async def test_an_endless_line_ends_the_server(connections: ConnectionPool):
    endpoint = faulty_stdio(max_body=100_000)
    error = await failure(call(connections, endpoint, "endless_line"))
    assert error.code == "response_too_large"


@pytest.mark.parametrize(
    ("tool", "reason"), [("deep", "nested deeper"), ("broken_json", "not JSON")]
)
async def test_an_invalid_response_fails_only_its_call(
    connections: ConnectionPool, tool: str, reason: str
):
    endpoint = faulty_stdio()
    error = await failure(call(connections, endpoint, tool))
    assert error.code == "protocol_error"
    assert reason in str(error)
    assert text_of(await call(connections, endpoint, "echo")) == "{}"


@pytest.mark.parametrize("value", [None, 7, [], {"resultType": "task"}])
async def test_a_result_of_another_type_is_a_protocol_error(
    connections: ConnectionPool, value: Any
):
    error = await failure(call(connections, faulty_stdio(), "not_an_object", value=value))
    assert error.code == "protocol_error"


async def test_a_result_that_requires_input_is_returned(connections: ConnectionPool):
    value = {"resultType": "input_required", "requestState": "s"}
    assert await call(connections, faulty_stdio(), "not_an_object", value=value) == value


async def test_characters_that_cant_be_stored_are_replaced(connections: ConnectionPool):
    assert await call(connections, faulty_stdio(), "unusual") == {"a\ufffd": "b\ufffd😀"}


async def test_a_server_that_reads_nothing_times_out(connections: ConnectionPool):
    endpoint = faulty_stdio()
    await connections.perform_handshake(endpoint, holder=HOLDER)
    await failure(call(connections, endpoint, "block", timeout_s=LIMIT_S))
    large = "x" * 3_000_000
    for _ in range(2):
        error = await failure(call(connections, endpoint, "echo", a=large, timeout_s=LIMIT_S))
        assert error.code == "call_timeout"
    error = await failure(call(connections, endpoint, "echo", timeout_s=LIMIT_S))
    assert (error.code, error.sent) == ("server_unreachable", False)


async def test_the_last_64_kib_of_stderr_are_kept(connections: ConnectionPool):
    endpoint = faulty_stdio()
    assert connections.get_stderr_tail(endpoint.server_id) == ""
    await call(connections, endpoint, "complain", size=1_000_000, end="the end\n")
    stderr = connections.get_stderr_tail(endpoint.server_id)
    assert len(stderr) == 64 * 1024
    assert stderr.endswith("eee" + "the end\n")


async def test_saved_stderr_contains_no_secret(connections: ConnectionPool):
    endpoint = faulty_stdio(env={"TOKEN": "tok-in-the-clear"})
    await call(connections, endpoint, "complain", size=1, end="tok-in-the-clear\x1b[2J\n")
    stderr = connections.get_stderr_tail(endpoint.server_id)
    assert "tok-in" not in stderr
    assert "\x1b" not in stderr
