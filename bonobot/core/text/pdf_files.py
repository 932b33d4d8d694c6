"""Recognize PDF files and estimate their pages, without a PDF library.

The estimate limits what is sent to a model, and its cost. It is too low for a file that hides its
pages; the provider refuses such a file if it is too long.
"""

import re
import zlib
from collections.abc import Iterator

PDF_TYPE = "application/pdf"
MAX_PDF_BYTES = 4 * 1024 * 1024  # bytes; Amazon Bedrock accepts 4.5 MB
MAX_PDF_PAGES = 100  # Anthropic's limit for most of its models

_PAGE = re.compile(rb"/Type\s{0,8}/Page(?![A-Za-z])")
_COUNT = re.compile(rb"/Count\s{1,8}(\d{1,6})(?!\d)")
_ENCRYPTION = re.compile(rb"/Encrypt\s{0,8}(?:<<|\d{1,10}\s{1,8}\d{1,5}\s{1,8}R)")
_STREAM_START = re.compile(rb"stream\r?\n")
# The longest dictionary of an object stream that is searched for the stream after it, in bytes.
_MAX_DICTIONARY_BYTES = 4096
# Bytes of unpacked object streams that are searched in total.
_MAX_UNPACKED_BYTES = 16 * 1024 * 1024


def is_pdf(data: bytes) -> bool:
    """Tell whether bytes are a PDF file, by their header."""
    return data.startswith(b"%PDF-")


def is_encrypted_pdf(data: bytes) -> bool:
    """Tell whether a PDF file is encrypted, so that models can't read it."""
    return _ENCRYPTION.search(data) is not None


def estimate_pdf_pages(data: bytes) -> int:
    """Return about how many pages a PDF file has, at least 1."""
    page_count = largest_count = 0
    for objects in (data, *_iterate_object_streams(data)):
        page_count += len(_PAGE.findall(objects))
        largest_count = max(largest_count, *map(int, _COUNT.findall(objects)), 0)
    # An edited file has older versions of its pages, and a table of contents may be longer.
    return max(1, min(page_count, largest_count) if largest_count else page_count)


def _iterate_object_streams(data: bytes) -> Iterator[bytes]:
    """Yield the unpacked object streams, in which newer files list their pages."""
    remaining_bytes, position = _MAX_UNPACKED_BYTES, data.find(b"/ObjStm")
    while position >= 0 and remaining_bytes > 0:
        window_end = position + _MAX_DICTIONARY_BYTES
        start = _STREAM_START.search(data, position, window_end)
        if start is None:
            position = data.find(b"/ObjStm", window_end)
            continue
        end = data.find(b"endstream", start.end())
        if end < 0:
            return
        try:
            objects = zlib.decompressobj().decompress(data[start.end() : end], remaining_bytes)
        except zlib.error:  # another filter, or none
            objects = b""
        remaining_bytes -= len(objects)
        yield objects
        position = data.find(b"/ObjStm", end)
