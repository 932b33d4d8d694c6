"""Estimates of the tokens of a request, to reserve them before sending. No I/O."""

import json
from collections.abc import Sequence

from agents.llm.interface import (
    Message,
    ToolSpec,
)

BYTES_PER_TOKEN = 4  # of English; other scripts have more bytes and more tokens a character
TOKENS_PER_IMAGE = 1_600  # what most providers count for a large one
TOKENS_PER_PAGE = 3_000  # of a PDF file: its text, and the page as an image
TOKENS_PER_MESSAGE = 4  # of markup around a message or tool, about


def estimate_tokens(
    messages: Sequence[Message], instructions: str = "", tools: Sequence[ToolSpec] = ()
) -> int:
    """Estimate a request's tokens, to reserve them before sending."""
    parts = [instructions] if instructions else []
    parts += [_format_message(message) for message in messages]
    parts += [f"{tool.name} {tool.description} {_encode_json(tool.parameters)}" for tool in tools]
    image_count = sum(len(message.get("images", ())) for message in messages)
    file_bytes = sum(
        attached_file.get("size", 0)
        for message in messages
        for attached_file in message.get("files", ())
        if "pages" not in attached_file
    )
    page_count = sum(
        document.get("pages", 0)
        for message in messages
        for document in (*message.get("files", ()), *message.get("documents", ()))
    )
    text_tokens = sum(count_tokens(part) + TOKENS_PER_MESSAGE for part in parts)
    file_tokens = file_bytes // BYTES_PER_TOKEN + page_count * TOKENS_PER_PAGE
    return text_tokens + image_count * TOKENS_PER_IMAGE + file_tokens


def count_tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def truncate_text(text: str, tokens: int) -> str:
    """Return the start of a text with at most `tokens` tokens."""
    head = text.encode("utf-8", "surrogatepass")[: tokens * BYTES_PER_TOKEN]
    return head.decode("utf-8", "ignore")


def _format_message(message: Message) -> str:
    return message["text"] + (_encode_json(message["calls"]) if message.get("calls") else "")


def _encode_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
