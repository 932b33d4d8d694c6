"""JSON-RPC messages: which are accepted, refused before parsing, and sent."""

import json
import time
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from mcp_servers.client import jsonrpc
from mcp_servers.client.jsonrpc import (
    McpRequest,
    UnreadableJson,
    build_request_message,
    decode_json,
    deliver_notification,
    encode_message,
)

JSON = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**53), 2**53) | some.text(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
    max_leaves=20,
)


def storable(value: Any) -> Any:
    return json.loads(json.dumps(value).replace("\\u0000", "\\ufffd"))


@given(JSON)
def test_a_sent_message_is_read_back_unchanged(value: Any):
    assert decode_json(encode_message({"a": value})) == storable({"a": value})


@given(JSON | some.floats(allow_nan=False, allow_infinity=False))
@example("\x7f")
@example("NaN and Infinity")
@example("\ud800")
@example(1e16)
def test_a_message_means_the_same_as_in_standard_json(value: Any):
    encoded = encode_message({"a": value})
    assert encoded.isascii()
    assert json.loads(encoded) == json.loads(json.dumps({"a": value}))


@given(some.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(raw: bytes):
    with suppress(UnreadableJson):
        decode_json(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"NaN",
        b"[Infinity]",
        b"1e999",
        b"-1e999",
        b"9" * 5000,
        b'"\xff"',
        '"ü"'.encode("utf-16"),
        b"[" * 65 + b"]" * 65,
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b"[" + b"[]," * 100_000 + b"[]]",
        b"[" + b'"",' * 400_001 + b'""]',
    ],
)
def test_invalid_or_too_large_json_is_refused(raw: bytes):
    with pytest.raises(UnreadableJson):
        decode_json(raw)


def test_depth_is_counted_only_outside_strings():
    deepest = b"[" * 64 + b"]" * 64
    assert decode_json(deepest)
    text = json.dumps("[" * 1000 + '\\"{' * 1000).encode()
    assert decode_json(b"[" + text + b"]") == ["[" * 1000 + '\\"{' * 1000]


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 4_000_000,
        b'["' + b'\\"' * 1_900_000 + b'"]',
        b'["' + b"\\" * 4_000_000 + b'"]',
        b'"' * 4_000_000,
        b'{"a":"' + b"x" * 4_000_000 + b'"}',
        b"[" + b"1," * 99_000 + b"1]",
        b"[" + b'"",' * 99_000 + b"1]",
        b"[" + b'{"":1},' * 33_000 + b"1]",
        b'["' + b"\\ud800" * 600_000 + b'"]',
    ],
)
def test_no_body_blocks_the_loop_or_exhausts_memory(raw: bytes):
    tracemalloc.start()
    started_at = time.thread_time()
    with suppress(UnreadableJson):
        decode_json(raw)
    took_s = time.thread_time() - started_at
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert took_s < 1.5  # tracing makes it several times slower
    assert peak < 64 * 2**20


def test_lone_surrogates_and_nul_are_replaced_visibly():
    assert decode_json(b'{"a\\u0000": ["\\ud83d", "\\ud83d\\ude00", 1]}') == {
        "a\ufffd": ["\ufffd", "😀", 1]
    }


def test_a_request_without_parameters_has_no_params():
    assert build_request_message(1, McpRequest("ping"), {}) == {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "ping",
    }


def test_a_meta_that_isnt_an_object_isnt_sent():
    assert "params" not in build_request_message(1, McpRequest("x", {"_meta": "odd"}), {})


def test_a_request_has_a_progress_token_only_if_there_is_a_listener():
    async def on_progress(*args: Any) -> None: ...

    assert "params" not in build_request_message(1, McpRequest("x"), {})
    message = build_request_message(5, McpRequest("x", {"a": 1}, on_progress), {"v": 1})
    assert message["params"] == {"a": 1, "_meta": {"v": 1, "progressToken": 5}}


def test_nan_and_infinity_arent_sent():
    with pytest.raises(ValueError, match="JSON"):
        encode_message({"a": float("nan")})


@pytest.mark.parametrize("method", ["tools/list", "resources/templates/list", "ping"])
def test_only_read_requests_can_be_repeated(method: str):
    assert McpRequest(method).idempotent
    assert not McpRequest("tools/call").idempotent


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"progress": 1}, (1, None, None)),
        ({"progress": 0.5, "total": 2, "message": "m"}, (0.5, 2, "m")),
        ({"progress": 1, "total": "x", "message": 7}, (1, None, None)),
        ({"progress": "1"}, None),
        ([], None),
        (None, None),
    ],
)
async def test_only_valid_progress_is_reported(params: Any, expected: Any):
    reported = []

    async def on_progress(*args: Any) -> None:
        reported.append(args)

    await deliver_notification(McpRequest("x", {}, on_progress), {"params": params})
    assert reported == ([expected] if expected else [])


def test_responses_are_matched_by_id_and_type():
    response = {"id": 1, "result": {}}
    assert jsonrpc.is_response(response, 1)
    for other in (
        {**response, "id": "1"},
        {**response, "id": True},
        {**response, "id": 1.0},
        {**response, "method": "x"},
        {"id": 1},
        [response],
    ):
        assert not jsonrpc.is_response(other, 1)
