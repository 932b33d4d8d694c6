"""Attachments: images, text and PDF files that people send with a message.

The type is detected from the bytes: an image that models accept, a PDF file, or UTF-8 text. A model
gets a text between two lines with a random mark that its content can't forge; an image or a PDF
file, if it supports them.
"""

import base64
import binascii
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any
from uuid import UUID

from agents.images import (
    MAX_IMAGE_BYTES,
    detect_media_type,
    load_message_images,
    store_blob,
    store_images,
)
from agents.llm.interface import ImageData, Message
from agents.models import Blob
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.pdf_files import (
    MAX_PDF_BYTES,
    MAX_PDF_PAGES,
    PDF_TYPE,
    estimate_pdf_pages,
    is_encrypted_pdf,
    is_pdf,
)
from bonobot.core.text.untrusted_text import make_visible

FIELD = "attachments"
MAX_ATTACHMENTS = 8
MAX_TEXT_BYTES = 256 * 1024  # bytes
MAX_TOTAL_BYTES = 8 * 1024 * 1024  # bytes, of one message
MAX_NAME_LENGTH = 120
TEXT_TYPE = "text/plain"
# The latest PDF files of a conversation go to the model; Amazon Bedrock accepts five.
MAX_SHOWN_PDFS = 5


@dataclass(frozen=True)
class Attachment:
    """A file as it was sent; its name says nothing about its type."""

    name: str
    data: bytes = field(repr=False)


def store_attachments(
    organization_id: UUID, attachments: Sequence[Attachment], *, pdf_input: bool = False
) -> dict[str, Any]:
    """Store files and return their references for a message: `images` and `files`.

    Stored secrets of the organization are masked in texts. Raises `InvalidInput` (field
    `attachments`) before anything is stored, also for PDF files without `pdf_input`.
    """
    if (
        len(attachments) > MAX_ATTACHMENTS
        or sum(len(attachment.data) for attachment in attachments) > MAX_TOTAL_BYTES
    ):
        raise _build_error(
            format_message(
                "{count} files with {size:,} bytes in total exceed the limit.",
                count=len(attachments),
                size=sum(len(attachment.data) for attachment in attachments),
            ),
            format_message(
                "Send at most {most} files with {largest_together:,} bytes in total.",
                most=MAX_ATTACHMENTS,
                largest_together=MAX_TOTAL_BYTES,
            ),
        )
    typed_files = [
        (_clean_name(attachment), attachment.data, _detect_type(attachment, pdf_input))
        for attachment in attachments
    ]
    images = [
        (name, ImageData(media_type, data))
        for name, data, media_type in typed_files
        if media_type not in (TEXT_TYPE, PDF_TYPE)
    ]
    image_references = store_images(organization_id, [image for _, image in images])
    references = {
        "images": [
            reference | {"name": name}
            for (name, _), reference in zip(images, image_references, strict=True)
        ],
        "files": [
            (_store_pdf if media_type == PDF_TYPE else _store_text)(organization_id, name, data)
            for name, data, media_type in typed_files
            if media_type in (TEXT_TYPE, PDF_TYPE)
        ],
    }
    return {name: value for name, value in references.items() if value}


def decode_attachments(encoded_files: Sequence[Mapping[str, str]]) -> list[Attachment]:
    """Return files decoded from JSON (`name`, `content` in base64); raises `InvalidInput`."""
    return [
        Attachment(encoded_file["name"], _decode_content(encoded_file))
        for encoded_file in encoded_files
    ]


def build_model_messages(
    organization_id: UUID,
    messages: Sequence[Message],
    *,
    image_input: bool,
    pdf_input: bool = False,
) -> list[Message]:
    """Return the messages with their attached texts, and what the model sees of other files."""
    expanded_messages = expand_files(organization_id, messages, pdf_input=pdf_input)
    return load_message_images(organization_id, expanded_messages, image_input=image_input)


def expand_files(
    organization_id: UUID, messages: Sequence[Message], *, pdf_input: bool = False
) -> list[Message]:
    """Return the messages with the text of each attached file, and `documents` for PDF files."""
    files = [file for message in messages for file in message.get("files", ())]
    pdf_digests = [file["sha256"] for file in files if file.get("media_type") == PDF_TYPE]
    shown_pdfs = set(pdf_digests[-MAX_SHOWN_PDFS:] if pdf_input else ())
    digests = {file["sha256"] for file in files} - set(pdf_digests) | shown_pdfs
    rows = Blob.objects.for_organization(organization_id).filter(sha256__in=digests)
    contents = {row.sha256: bytes(row.data) for row in rows} if digests else {}
    return [_expand_message_files(message, contents) for message in messages]


def _expand_message_files(message: Message, contents: Mapping[str, bytes]) -> Message:
    if message["role"] != "user" or not (message.get("files") or message.get("images")):
        return message
    images = [
        f"[attached image {attached.get('name', '')}]" for attached in message.get("images", ())
    ]
    files = [_render_file(attached, contents) for attached in message.get("files", ())]
    documents = [
        {"media_type": PDF_TYPE, "data": contents[attached["sha256"]], "pages": attached["pages"]}
        for attached in message.get("files", ())
        if attached.get("media_type") == PDF_TYPE and attached["sha256"] in contents
    ]
    kept_fields = {name: value for name, value in message.items() if name != "files"}
    text = "\n\n".join(part for part in (message["text"], *images, *files) if part)
    return kept_fields | {"text": text} | ({"documents": documents} if documents else {})


def _render_file(attached: Mapping[str, Any], contents: Mapping[str, bytes]) -> str:
    """Return an attached text, or a note on a PDF file."""
    content = contents.get(attached["sha256"])
    if attached.get("media_type") == PDF_TYPE:
        note = "" if content else ": omitted, because you can't read PDF files"
        return f"[attached PDF file {attached['name']}{note}]"
    mark, text = attached["mark"], (content or b"").decode()
    return f"[attached file {mark} {attached['name']}]\n{text}\n[end of file {mark}]"


def _store_text(organization_id: UUID, name: str, data: bytes) -> dict[str, Any]:
    text = mask_organization_secrets(data.decode(), organization_id).encode()
    return store_blob(organization_id, TEXT_TYPE, text) | {
        "name": name,
        "mark": secrets.token_hex(8),
    }


def _store_pdf(organization_id: UUID, name: str, data: bytes) -> dict[str, Any]:
    return store_blob(organization_id, PDF_TYPE, data) | {
        "name": name,
        "pages": estimate_pdf_pages(data),
    }


def _detect_type(attachment: Attachment, pdf_input: bool) -> str:
    """Return the type by the bytes; raises `InvalidInput` for unsupported ones."""
    if is_pdf(attachment.data):
        _check_pdf(attachment, pdf_input)
        return PDF_TYPE
    if media_type := detect_media_type(attachment.data):
        if len(attachment.data) > MAX_IMAGE_BYTES:
            raise _build_error(
                format_message(
                    "The image {name!r} has {count:,} bytes.",
                    name=_clean_name(attachment),
                    count=len(attachment.data),
                ),
                format_message(
                    "Send images of at most {largest:,} bytes.", largest=MAX_IMAGE_BYTES
                ),
            )
        return media_type
    if len(attachment.data) > MAX_TEXT_BYTES:
        raise _build_error(
            format_message(
                "The file {name!r} has {count:,} bytes.",
                name=_clean_name(attachment),
                count=len(attachment.data),
            ),
            format_message(
                "Send text files of at most {largest_text:,} bytes, or images.",
                largest_text=MAX_TEXT_BYTES,
            ),
        )
    try:
        text = attachment.data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise _build_error(
            format_message(
                "The file {name!r} is neither UTF-8 text, nor an image, nor a PDF file.",
                name=_clean_name(attachment),
            ),
            "Send UTF-8 text, images (PNG, JPEG, GIF, WebP), or PDF files.",
        )
    return TEXT_TYPE


def _check_pdf(attachment: Attachment, pdf_input: bool) -> None:
    """Raise `InvalidInput` for a PDF file that the agent's model can't read."""
    name = _clean_name(attachment)
    if not pdf_input:
        raise _build_error(
            format_message("The agent's model doesn't accept the PDF file {name!r}.", name=name),
            "Send its text, or enable PDF input on the model endpoint if the model supports it.",
        )
    page_count = estimate_pdf_pages(attachment.data)
    if len(attachment.data) > MAX_PDF_BYTES or page_count > MAX_PDF_PAGES:
        raise _build_error(
            format_message(
                "The PDF file {name!r} has {count:,} bytes and {pages} pages.",
                name=name,
                count=len(attachment.data),
                pages=page_count,
            ),
            format_message(
                "Send PDF files of at most {largest:,} bytes and {most} pages.",
                largest=MAX_PDF_BYTES,
                most=MAX_PDF_PAGES,
            ),
        )
    if is_encrypted_pdf(attachment.data):
        raise _build_error(
            format_message("The PDF file {name!r} is encrypted.", name=name),
            "Remove its password, then send it again.",
        )


def _clean_name(attachment: Attachment) -> str:
    name = make_visible(PurePath(attachment.name.replace("\\", "/")).name, MAX_NAME_LENGTH)
    return name.replace("[", "(").replace("]", ")").replace("\n", " ") or "file"


def _decode_content(encoded_file: Mapping[str, str]) -> bytes:
    try:
        return base64.b64decode(encoded_file["content"], validate=True)
    except (binascii.Error, ValueError):
        raise _build_error(
            format_message(
                "The file {name!r} isn't valid base64.", name=encoded_file["name"][:MAX_NAME_LENGTH]
            ),
            "Encode the file as base64.",
        ) from None


def _build_error(detail: str, remedy: str) -> InvalidInput:
    return InvalidInput(detail, field=FIELD, remedy=remedy)
