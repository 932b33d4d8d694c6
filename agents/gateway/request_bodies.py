"""Read the bodies of POST requests."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic_core import from_json

# The SDK's limit, with which it rejects larger bodies.
MAX_BODY_SIZE = 4 * 1024 * 1024

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


async def read_body(receive: Receive) -> tuple[bytes | None, Receive]:
    """Return a request's body, and a `receive` that returns it again and then what follows.

    The body is None if it is too large or incomplete.
    """
    message = await receive()
    replay = replay_messages([message], receive)
    if message["type"] == "http.request" and not message.get("more_body", False):
        body = message.get("body", b"")
        return (body if len(body) <= MAX_BODY_SIZE else None), replay
    return await _read_parts(replay)


async def _read_parts(receive: Receive) -> tuple[bytes | None, Receive]:
    messages, size, is_complete = [], 0, False
    while not is_complete and size <= MAX_BODY_SIZE:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request":
            break
        size += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
    body = b"".join([message.get("body", b"") for message in messages])
    has_body = is_complete and size <= MAX_BODY_SIZE
    return (body if has_body else None), replay_messages(messages, receive)


def replay_messages(messages: Sequence[dict[str, Any]], receive: Receive) -> Receive:
    """Return a `receive` that returns `messages` first."""
    remaining = iter(messages)

    async def receive_next() -> dict[str, Any]:
        message = next(remaining, None)
        return message if message is not None else await receive()

    return receive_next


def build_body_message(body: bytes) -> dict[str, Any]:
    """Return the ASGI message of a whole body."""
    return {"type": "http.request", "body": body, "more_body": False}


def parse_object(body: bytes) -> dict[str, Any] | None:
    """Return a body's JSON object; None for anything else."""
    try:
        value = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError:  # perhaps only for this parser
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None
