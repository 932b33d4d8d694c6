"""Attachments: images and text files that people send with a message.

The type is detected from the bytes: an image that models accept, or UTF-8 text. A model gets a text
between two lines with a random mark that its content can't forge; an image, if it supports them.
"""

import base64
import binascii
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any
from uuid import UUID

from agents.images import LARGEST, detect_media_type, keep, keep_bytes, load_message_images
from agents.llm.interface import ImageData, Message
from agents.models import Blob
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible

FIELD = "attachments"
MOST = 8
LARGEST_TEXT = 256 * 1024  # bytes
LARGEST_TOGETHER = 8 * 1024 * 1024  # bytes, of one message
NAME_LENGTH = 120
TEXT = "text/plain"


@dataclass(frozen=True)
class Attachment:
    """A file as it was sent; its name says nothing about its type."""

    name: str
    data: bytes = field(repr=False)


def store_attachments(organization_id: UUID, given: Sequence[Attachment]) -> dict[str, Any]:
    """Store files and return their references for a message: `images` and `files`.

    Stored secrets of the organization are masked in texts. Raises `InvalidInput` (field
    `attachments`) before anything is stored.
    """
    if len(given) > MOST or sum(len(one.data) for one in given) > LARGEST_TOGETHER:
        raise _build_error(
            format_message(
                "{count} files with {size:,} bytes are too much.",
                count=len(given),
                size=sum(len(one.data) for one in given),
            ),
            format_message(
                "Send {most} files with {largest_together:,} bytes together at most.",
                most=MOST,
                largest_together=LARGEST_TOGETHER,
            ),
        )
    read = [(_clean_name(one), one.data, _detect_type(one)) for one in given]
    images = [(name, ImageData(kind, data)) for name, data, kind in read if kind != TEXT]
    kept = keep(organization_id, [picture for _, picture in images])
    found = {
        "images": [said | {"name": name} for (name, _), said in zip(images, kept, strict=True)],
        "files": [
            _store_text(organization_id, name, data) for name, data, kind in read if kind == TEXT
        ],
    }
    return {name: value for name, value in found.items() if value}


def from_base64(given: Sequence[Mapping[str, str]]) -> list[Attachment]:
    """Return files decoded from JSON (`name`, `content` in base64); raises `InvalidInput`."""
    return [Attachment(one["name"], _decode_content(one)) for one in given]


def build_model_messages(
    organization_id: UUID, messages: Sequence[Message], *, sees: bool
) -> list[Message]:
    """Return the messages with their attached texts, and images if the model sees them."""
    return load_message_images(organization_id, expand_files(organization_id, messages), sees=sees)


def expand_files(organization_id: UUID, messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the text of each attached file inserted."""
    wanted = {one["sha256"] for message in messages for one in message.get("files", ())}
    rows = Blob.objects.for_organization(organization_id).filter(sha256__in=wanted)
    texts = {row.sha256: bytes(row.data).decode() for row in rows} if wanted else {}
    return [_expand_message_files(message, texts) for message in messages]


def _expand_message_files(message: Message, texts: Mapping[str, str]) -> Message:
    if message["role"] != "user" or not (message.get("files") or message.get("images")):
        return message
    images = [f"[attached image {one.get('name', '')}]" for one in message.get("images", ())]
    files = [
        f"[attached file {one['mark']} {one['name']}]\n{texts.get(one['sha256'], '')}\n"
        f"[end of file {one['mark']}]"
        for one in message.get("files", ())
    ]
    plain = {name: value for name, value in message.items() if name != "files"}
    return plain | {
        "text": "\n\n".join(part for part in (message["text"], *images, *files) if part)
    }


def _store_text(organization_id: UUID, name: str, data: bytes) -> dict[str, Any]:
    text = mask_organization_secrets(data.decode(), organization_id).encode()
    return keep_bytes(organization_id, TEXT, text) | {"name": name, "mark": secrets.token_hex(8)}


def _detect_type(one: Attachment) -> str:
    """Return the type by the bytes; raises `InvalidInput` for unsupported ones."""
    if kind := detect_media_type(one.data):
        if len(one.data) > LARGEST:
            raise _build_error(
                format_message(
                    "The image {one!r} has {count:,} bytes.",
                    one=_clean_name(one),
                    count=len(one.data),
                ),
                format_message("Send images of {largest:,} bytes at most.", largest=LARGEST),
            )
        return kind
    if len(one.data) > LARGEST_TEXT:
        raise _build_error(
            format_message(
                "The file {one!r} has {count:,} bytes.",
                one=_clean_name(one),
                count=len(one.data),
            ),
            format_message(
                "Send text files of {largest_text:,} bytes at most, or images.",
                largest_text=LARGEST_TEXT,
            ),
        )
    try:
        text = one.data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise _build_error(
            format_message(
                "The file {one!r} is neither text in UTF-8 nor an image.", one=_clean_name(one)
            ),
            "Send texts, and images as PNG, JPEG, GIF or WebP.",
        )
    return TEXT


def _clean_name(one: Attachment) -> str:
    name = make_visible(PurePath(one.name.replace("\\", "/")).name, NAME_LENGTH)
    return name.replace("[", "(").replace("]", ")").replace("\n", " ") or "file"


def _decode_content(one: Mapping[str, str]) -> bytes:
    try:
        return base64.b64decode(one["content"], validate=True)
    except (binascii.Error, ValueError):
        raise _build_error(
            format_message("The file {name!r} is not in base64.", name=one["name"][:NAME_LENGTH]),
            "Encode its bytes so.",
        ) from None


def _build_error(detail: str, remedy: str) -> InvalidInput:
    return InvalidInput(detail, field=FIELD, remedy=remedy)
