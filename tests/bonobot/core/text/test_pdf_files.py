"""PDF files: recognized by their bytes, their pages estimated."""

import zlib

import pytest

from bonobot.core.text.pdf_files import MAX_PDF_PAGES, estimate_pdf_pages, is_encrypted_pdf, is_pdf


def build_pdf(pages: int, *, is_packed: bool = False, count: int | None = None) -> bytes:
    """Return what of a PDF file matters here, in its objects or in an object stream."""
    tree = b"<</Type /Pages /Count %d>>" % (pages if count is None else count)
    objects = tree + b"<</Type /Page>>\n" * pages
    if is_packed:
        packed = zlib.compress(objects)
        objects = b"<</Type /ObjStm /N 3 /Filter /FlateDecode>>\nstream\r\n%s\nendstream" % packed
    return b"%PDF-1.7\n" + objects + b"\ntrailer <</Root 1 0 R>>\n%%EOF"


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("pages", [1, 7, MAX_PDF_PAGES + 1])
def test_pages_are_counted_also_in_object_streams(pages: int, is_packed: bool) -> None:
    assert estimate_pdf_pages(build_pdf(pages, is_packed=is_packed)) == pages


def test_older_versions_of_pages_and_long_tables_of_contents_dont_count() -> None:
    assert estimate_pdf_pages(build_pdf(14, count=7)) == 7
    assert estimate_pdf_pages(build_pdf(7, count=200)) == 7


@pytest.mark.parametrize(
    "data",
    [
        b"%PDF-1.4",
        b"%PDF-1.4 /ObjStm",
        b"%PDF-1.4 /ObjStm stream\nnot zlib\nendstream",
        b"%PDF-1.4 /ObjStm stream\n" + zlib.compress(b"/Type /Page")[:-8],
    ],
)
def test_a_damaged_file_has_one_page(data: bytes) -> None:
    assert estimate_pdf_pages(data) == 1


def test_a_file_that_unpacks_to_much_is_searched_only_in_part() -> None:
    bomb = zlib.compress(b"/Type /Page " * 1_500_000, 1)
    data = b"%PDF-1.7 /ObjStm stream\n" + bomb + b"\nendstream"
    assert MAX_PDF_PAGES < estimate_pdf_pages(data) < 1_500_000


def test_types_and_encryption_are_recognized() -> None:
    assert is_pdf(build_pdf(1))
    assert not is_pdf(b"see %PDF-1.7")
    assert is_encrypted_pdf(b"%PDF-1.7 trailer <</Encrypt 5 0 R>>")
    assert not is_encrypted_pdf(b"%PDF-1.7 (the key /Encrypt of a trailer)")
