"""Images in tool results and messages, stored once by their digest.

Steps only refer to them. The number of images that a model gets is limited; a model that doesn't
support images gets their placeholders in the text.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.http import HttpResponse

from agents.llm.interface import ImageData, Message
from agents.models import Blob, Session
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound

MOST_IN_A_RESULT = 8
LARGEST = 4 * 1024 * 1024  # bytes; providers accept less than 5 MiB
# The latest images of a conversation go to the model; older ones are left out.
MOST_SHOWN = 10

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def detect_media_type(data: bytes) -> str:
    """Return the type of an image by its first bytes; "" if it is not supported."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for begins, kind in _BEGINNINGS if data.startswith(begins)), "")


def extract_images(result: dict[str, Any]) -> tuple[ImageData, ...]:
    """Return the images of a tool's content; the type that the server declares is ignored."""
    content = result.get("content")
    parts = content if isinstance(content, list) else []
    found = (_decode_image(part) for part in parts if isinstance(part, dict))
    return tuple(one for one in found if one is not None)[:MOST_IN_A_RESULT]


def keep(organization_id: UUID, pictures: Iterable[ImageData]) -> list[dict[str, Any]]:
    """Store images, each once, and return their references for a step."""
    named = []
    for one in pictures:
        if not (kind := detect_media_type(one.data)) or len(one.data) > LARGEST:
            continue
        named.append(keep_bytes(organization_id, kind, one.data))
    return named


def keep_bytes(organization_id: UUID, media_type: str, data: bytes) -> dict[str, Any]:
    """Store bytes, once, and return their reference for a step."""
    digest = hashlib.sha256(data).hexdigest()
    Blob.objects.get_or_create(
        organization_id=organization_id,
        sha256=digest,
        defaults={"media_type": media_type, "size": len(data), "data": data},
    )
    return {"sha256": digest, "media_type": media_type, "size": len(data)}


def load_message_images(
    organization_id: UUID, messages: Sequence[Message], *, sees: bool
) -> list[Message]:
    """Return the messages with the bytes of their latest images, or without images."""
    wanted = [one["sha256"] for m in messages for one in m.get("images", ())] if sees else []
    rows = Blob.objects.for_organization(organization_id).filter(sha256__in=wanted[-MOST_SHOWN:])
    data = {row.sha256: (row.media_type, bytes(row.data)) for row in rows} if wanted else {}
    left = set(data)
    found = []
    for message in reversed(messages):
        images = [one["sha256"] for one in message.get("images", ()) if one["sha256"] in left]
        left -= set(images)
        plain = {name: value for name, value in message.items() if name != "images"}
        parts = [{"media_type": data[key][0], "data": data[key][1]} for key in images]
        found.append(plain | ({"images": parts} if parts else {}))
    return found[::-1]


def get_session_blob(session: Session, sha256: str, *, what: str = "images") -> Blob:
    """Return a blob that a step of the session refers to; raises `NotFound` otherwise.

    `what`: `images`, or the `files` of people's messages.
    """
    steps = session.steps.filter(payload__has_key=what).values_list("payload", flat=True)
    named = {one["sha256"] for payload in steps for one in payload[what]}
    found = Blob.objects.for_organization(session.organization_id).filter(sha256=sha256).first()
    if found is None or sha256 not in named:
        raise NotFound(
            format_message("There is no such {what} in this session.", what=what.removesuffix("s")),
            field="sha256",
            remedy="Take the digest from a step of the session.",
        )
    return found


def as_answer(blob: Blob) -> HttpResponse:
    """Return an image or text as a response whose content can't run scripts."""
    charset = "; charset=utf-8" if blob.media_type.startswith("text/") else ""
    answer = HttpResponse(bytes(blob.data), content_type=f"{blob.media_type}{charset}")
    answer["X-Content-Type-Options"] = "nosniff"
    answer["Content-Security-Policy"] = "default-src 'none'; sandbox"
    answer["Cache-Control"] = "private, max-age=3600"
    return answer


def _decode_image(part: dict[str, Any]) -> ImageData | None:
    said = part.get("data") if part.get("type") == "image" else None
    if part.get("type") == "resource" and isinstance(part.get("resource"), dict):
        said = part["resource"].get("blob")
    if not isinstance(said, str) or len(said) > LARGEST * 4 // 3 + 4:
        return None
    try:
        data = base64.b64decode(said, validate=True)
    except (binascii.Error, ValueError):
        return None
    kind = detect_media_type(data)
    return ImageData(kind, data) if kind else None
