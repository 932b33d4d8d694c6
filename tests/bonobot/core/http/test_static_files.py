"""Static files that change while the server runs."""

import asyncio
from pathlib import Path

import pytest
from django.contrib.staticfiles.storage import StaticFilesStorage, staticfiles_storage
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.test import RequestFactory

from bonobot.core.http.static_files import StaticFilesMiddleware

URL = "/static/page.css"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "page.css"
    path.write_text("a {}")
    return path


@pytest.fixture
def middleware(file: Path) -> StaticFilesMiddleware:
    """The middleware with one file."""

    async def answer_not_found(_request: object) -> HttpResponse:
        return HttpResponse(status=404)

    middleware = StaticFilesMiddleware(answer_not_found)
    middleware.add_file_to_dictionary(URL, str(file))
    return middleware


def fetch(middleware: StaticFilesMiddleware) -> tuple[HttpResponseBase, bytes]:
    """Return the response for the file, and its content."""

    async def read() -> tuple[HttpResponseBase, bytes]:
        response = await middleware(RequestFactory().get(URL))
        if not response.streaming:
            return response, b""
        return response, b"".join([part async for part in response])  # type: ignore[attr-defined]

    return asyncio.run(read())


def test_a_changed_file_is_sent_with_its_own_length(
    middleware: StaticFilesMiddleware, file: Path
) -> None:
    before, _content = fetch(middleware)
    assert before["Content-Length"] == "4"
    file.write_text("a { color: red }")
    after, content = fetch(middleware)
    assert content == b"a { color: red }"
    assert after["Content-Length"] == str(len(content))
    assert after["ETag"] != before["ETag"]


def test_a_removed_file_is_unknown(middleware: StaticFilesMiddleware, file: Path) -> None:
    file.unlink()
    assert fetch(middleware)[0].status_code == 404


def test_the_url_of_a_file_is_that_of_djangos_storage() -> None:
    for _ in range(2):  # computed, and kept
        url = staticfiles_storage.url("bonobot/a b.css")
        assert url == StaticFilesStorage().url("bonobot/a b.css") == "/static/bonobot/a%20b.css"
