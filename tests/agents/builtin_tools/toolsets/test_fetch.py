"""The toolset `fetch`: which hosts it can reach, and how it converts pages to text."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic

import pytest

from agents.builtin_tools.toolsets.fetch import extract_page_text
from agents.calls.pipeline import CallOutcome
from agents.models import Agent
from tests.agents.builtin_tools.conftest import configure_agent

Call = Callable[..., CallOutcome]
PAGE = """<html><head><title>My &amp; page</title><script>"</b>"; order()</script></head><body>
<h1>Hello</h1><p hidden>secret</p><div style="display: none">unseen <b>too</b></div>
<a href="javascript:x()">one</a> <a href="/b?c=1">two</a><!-- > gone --><ul><li>x<li>y</ul>
<pre>a
 b</pre><img alt="A cat" src=x><template>no</template>1 < 2</body></html>"""


class Handler(BaseHTTPRequestHandler):
    """Respond depending on the path."""

    def do_GET(self) -> None:
        kind, body = "text/html; charset=utf-8", PAGE
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header(
                "Location", self.path[3:] if self.path != "/to/out" else "http://[::1]:1/"
            )
            self.end_headers()
            return
        if self.path == "/data":
            kind, body = "application/json", '{"a": 1}'
        if self.path == "/bin":
            kind, body = "application/octet-stream", "\0\1"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(self.rfile.read(int(self.headers["Content-Length"])))

    def log_message(self, *_: object) -> None:
        """Discard the message."""


@pytest.fixture
def site() -> Iterator[str]:
    """A web site on a loopback address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_page_is_fetched_from_allowed_hosts_with_redirects_as_text(
    helper: Agent, call: Call, site: str
):
    configure_agent(helper, builtin_tools=["fetch"])
    assert call("http_fetch", {"url": f"{site}/"}).code == "private_address"
    options = {"allow_private": True, "hosts": ["127.0.0.1"]}
    configure_agent(helper, builtin_tools={"fetch": options})
    page = call("http_fetch", {"url": f"{site}/to/page"})
    assert f"from {site}/page]" in page.text
    assert "# Hello" in page.text
    assert "secret" not in page.text
    assert '{"a": 1}' in call("http_fetch", {"url": f"{site}/data"}).text
    for arguments, code in (
        ({"url": f"{site}/to/out"}, "host_denied"),
        ({"url": f"{site}/to/to/to/to/to/to/to/x"}, "too_many_redirects"),
        ({"url": "http://localhost/"}, "host_denied"),
        ({"url": "file:///etc/passwd"}, "host_denied"),
        ({"url": f"{site}/bin"}, "not_text"),
        ({"url": f"{site}/", "method": "POST", "body": "x"}, "method_denied"),
        ({"url": f"{site}/", "body": "x"}, "invalid"),
    ):
        failed = call("http_fetch", arguments)
        assert (failed.outcome, failed.code) == ("error", code), arguments
        assert failed.remedy
    configure_agent(helper, builtin_tools={"fetch": options | {"methods": ["POST"]}})
    posted = call("http_fetch", {"url": f"{site}/", "method": "POST", "body": "hello"})
    assert posted.text.endswith("hello")


def test_a_page_is_converted_to_the_visible_text():
    assert extract_page_text(PAGE, "https://example.com/a").splitlines() == [
        "# My & page",
        "",
        "# Hello",
        "one two (https://example.com/b?c=1)",
        "- x",
        "- y",
        "a",
        " b",
        "[image: A cat]1 < 2",
    ]


@pytest.mark.parametrize(
    "part", ["<a ", "<div>", "<!--", "<!--<b>", "</", "<b><i>", "<a href='", "<script>", "<", "&"]
)
def test_hostile_pages_are_converted_quickly(part: str):
    start = monotonic()
    extract_page_text(part * (300_000 // len(part)), "https://example.com/")
    assert monotonic() - start < 10
