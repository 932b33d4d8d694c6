"""Bodies of requests: what they mean, and which are passed on unread."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.gateway.request_bodies import (
    MAX_BODY_SIZE,
    parse_object,
    read_body,
)


def parse_standard_json(body: bytes) -> Any:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=10,
        ),
    )
)
def test_a_body_means_the_same_as_in_standard_json(value: dict[str, Any]) -> None:
    for body in (json.dumps(value).encode(), json.dumps(value, indent=1).encode("utf-16")):
        # Compared as text, because NaN doesn't equal itself.
        assert repr(parse_object(body)) == repr(parse_standard_json(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1e999, "b": -0, "b": -0.0}',
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b'\xef\xbb\xbf{"a": 1}',
        b'{"a": "\x01"}',
        b'{"a": 01}',
        b'{"a": 1,}',
        b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"a": ' + b"1" * 5000 + b"}",
        b"[]",
        b"",
        b"\xff",
    ],
)
def test_an_unusual_body_means_the_same_as_in_standard_json(body: bytes) -> None:
    assert repr(parse_object(body)) == repr(parse_standard_json(body))


def test_a_body_that_is_nested_too_deeply_is_none() -> None:
    assert parse_object(b"[" * 100_000) is None


def read(*messages: dict[str, Any]) -> tuple[bytes | None, list[dict[str, Any]]]:
    async def read_all() -> tuple[bytes | None, list[dict[str, Any]]]:
        remaining = iter([*messages, {"type": "http.disconnect"}])

        async def receive() -> dict[str, Any]:
            return next(remaining)

        body, replay = await read_body(receive)
        replayed = [await replay()]
        while replayed[-1]["type"] != "http.disconnect":
            replayed.append(await replay())
        return body, replayed[:-1]

    return asyncio.run(read_all())


def part(content: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": content, "more_body": more}


def test_a_body_can_be_read_again() -> None:
    parts = [part(b"ab", True), part(b"c", False)]
    assert read(*parts) == (b"abc", parts)


def test_too_large_and_broken_bodies_are_passed_on_unread() -> None:
    large = [part(b"x" * (MAX_BODY_SIZE + 1), True), part(b"y", False)]
    assert read(*large) == (None, large)
    body, replayed = read(part(b"x", True))
    assert body is None
    assert replayed == [part(b"x", True)]
