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
from bonobot.core.text.pdf_files import PDF_TYPE

# Images that pages show; the types that models are given are recognized by their first bytes.
SHOWN_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MAX_RESULT_IMAGES = 8
MAX_IMAGE_BYTES = 4 * 1024 * 1024  # bytes; providers accept less than 5 MiB
# The latest images of a conversation go to the model; older ones are left out.
MAX_SHOWN_IMAGES = 10

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def detect_media_type(data: bytes) -> str:
    """Return the type of an image by its first bytes; "" if it is not supported."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next(
        (media_type for signature, media_type in _SIGNATURES if data.startswith(signature)), ""
    )


def extract_images(result: dict[str, Any]) -> tuple[ImageData, ...]:
    """Return the images of a tool's content; the type that the server declares is ignored."""
    content = result.get("content")
    parts = content if isinstance(content, list) else []
    images = (_decode_image(part) for part in parts if isinstance(part, dict))
    return tuple(image for image in images if image is not None)[:MAX_RESULT_IMAGES]


def store_images(organization_id: UUID, images: Iterable[ImageData]) -> list[dict[str, Any]]:
    """Store images, each once, and return their references for a step."""
    references = []
    for image in images:
        if not (media_type := detect_media_type(image.data)) or len(image.data) > MAX_IMAGE_BYTES:
            continue
        references.append(store_blob(organization_id, media_type, image.data))
    return references


def store_blob(organization_id: UUID, media_type: str, data: bytes) -> dict[str, Any]:
    """Store bytes, once, and return their reference for a step."""
    digest = hashlib.sha256(data).hexdigest()
    Blob.objects.get_or_create(
        organization_id=organization_id,
        sha256=digest,
        defaults={"media_type": media_type, "size": len(data), "data": data},
    )
    return {"sha256": digest, "media_type": media_type, "size": len(data)}


def load_message_images(
    organization_id: UUID, messages: Sequence[Message], *, image_input: bool
) -> list[Message]:
    """Return the messages with the bytes of their latest images, or without images."""
    digests = (
        [
            reference["sha256"]
            for message_row in messages
            for reference in message_row.get("images", ())
        ]
        if image_input
        else []
    )
    rows = Blob.objects.for_organization(organization_id).filter(
        sha256__in=digests[-MAX_SHOWN_IMAGES:]
    )
    images_by_digest = (
        {row.sha256: (row.media_type, bytes(row.data)) for row in rows} if digests else {}
    )
    remaining = set(images_by_digest)
    loaded_images = []
    for message in reversed(messages):
        images = [
            reference["sha256"]
            for reference in message.get("images", ())
            if reference["sha256"] in remaining
        ]
        remaining -= set(images)
        kept_fields = {name: value for name, value in message.items() if name != "images"}
        image_parts = [
            {"media_type": images_by_digest[key][0], "data": images_by_digest[key][1]}
            for key in images
        ]
        loaded_images.append(kept_fields | ({"images": image_parts} if image_parts else {}))
    return loaded_images[::-1]


def get_session_blob(session: Session, sha256: str, *, payload_key: str = "images") -> Blob:
    """Return a blob that a step of the session refers to; raises `NotFound` otherwise.

    `what`: `images`, or the `files` of people's messages.
    """
    steps = session.steps.filter(payload__has_key=payload_key).values_list("payload", flat=True)
    referenced = {reference["sha256"] for payload in steps for reference in payload[payload_key]}
    blob = Blob.objects.for_organization(session.organization_id).filter(sha256=sha256).first()
    if blob is None or sha256 not in referenced:
        raise NotFound(
            format_message(
                "The {what} doesn't exist in this session.", what=payload_key.removesuffix("s")
            ),
            field="sha256",
            remedy="Use a digest from a step of the session.",
        )
    return blob


def build_blob_response(blob: Blob) -> HttpResponse:
    """Return an image or text as a response whose content can't run scripts; a PDF to download."""
    charset = "; charset=utf-8" if blob.media_type.startswith("text/") else ""
    response = HttpResponse(bytes(blob.data), content_type=f"{blob.media_type}{charset}")
    if blob.media_type == PDF_TYPE:  # viewers in browsers don't run in the sandbox below
        response["Content-Disposition"] = f'attachment; filename="{blob.sha256[:12]}.pdf"'
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = "default-src 'none'; sandbox"
    response["Cache-Control"] = "private, max-age=3600"
    return response


def _decode_image(part: dict[str, Any]) -> ImageData | None:
    encoded = part.get("data") if part.get("type") == "image" else None
    if part.get("type") == "resource" and isinstance(part.get("resource"), dict):
        encoded = part["resource"].get("blob")
    if not isinstance(encoded, str) or len(encoded) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        return None
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    media_type = detect_media_type(data)
    return ImageData(media_type, data) if media_type else None
