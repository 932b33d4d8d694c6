"""The default security headers are on every response of the real web process."""

import asyncio
import http.client
import re
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.urls import URLPattern, URLResolver, get_resolver

from bonobot import asgi
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.http.response_headers import build_default_headers
from bonobot.ledger.writer.writer_thread import get_writer
from tests import admin_client, factories
from tests.processes import Web

pytestmark = pytest.mark.worker
WEB_SETTINGS = {"BONOBOT_OAUTH": "on"}  # as in the URLs of the test process
SAMPLES = {"int": "1", "slug": "a", "str": "a", "path": "a", "uuid": str(UUID(int=1))}
OUTSIDE = (
    *("/healthz", "/readyz", "/metrics", "/mcp", "/mcp/agents/none", "/mcp/servers/none"),
    *("/.well-known/oauth-protected-resource/mcp", "/.well-known/nothing", "/no/such/page"),
    *("/static/bonobot/forms.js", "/static/none.js", "/api/none", "/admin", "//", "/%00"),
)
REQUIRED = frozenset(name.lower() for name in build_default_headers())


def list_paths(patterns: Any = None, prefix: str = "") -> Iterator[str]:
    """Yield a path for each pattern, with sample values."""
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        text = str(pattern.pattern)
        for name, converter in pattern.pattern.converters.items():
            kind = type(converter).__name__.removesuffix("Converter").lower()
            text = re.sub(rf"<(\w+:)?{name}>", SAMPLES.get(kind, "a"), text)
        text = prefix + re.sub(r"\(\?P?<\w+>[^)]*\)|[\^$]|\\", "", text)
        if isinstance(pattern, URLResolver):
            yield from list_paths(pattern.url_patterns, text)
        elif isinstance(pattern, URLPattern):
            yield f"/{text}"


def find_header_faults(response: http.client.HTTPResponse) -> str:
    """Return the missing or wrong headers of a response, or ""."""
    names = Counter(name.lower() for name, _ in response.getheaders())
    faults = sorted(REQUIRED - names.keys()) + [n for n in REQUIRED if names[n] > 1]
    if "unsafe-eval" in str(response.getheader("Content-Security-Policy")):
        faults.append("unsafe-eval")
    return ", ".join(faults)


def send_request(
    web: Web, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, str]:
    """Send a request; return the status and the missing or wrong headers."""
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)
    try:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, names)
        response = connection.getresponse()
        return response.status, find_header_faults(response)
    finally:
        connection.close()


@pytest.fixture(scope="module")
def cookie(module_web: Web) -> Iterator[str]:
    """The cookie of a platform administrator who owns an organization."""
    admin = admin_client.sign_in(factories.create_organization(), Role.OWNER)
    admin.user.is_superuser = True
    admin.user.save()
    morsel = admin.client.cookies[settings.SESSION_COOKIE_NAME]
    yield f"{morsel.key}={morsel.value}"
    get_writer().close()


def test_every_path_has_the_security_headers(module_web: Web, cookie: str) -> None:
    addresses = sorted({*list_paths(), *OUTSIDE})
    assert len(addresses) > 250
    statuses: Counter[int] = Counter()
    faults = []
    folders: set[str] = set()
    for path in addresses:
        if "logout" in path or path.endswith("/events"):
            continue
        # Without a cookie, all pages of a folder get the same response.
        folder = "/".join(path.split("/")[:3])
        anonymous = [{}] if folder not in folders else []
        folders.add(folder)
        for headers in (*anonymous, {"Cookie": cookie}):
            status, header_faults = send_request(module_web, "GET", path, **headers)
            statuses[status] += 1
            faults += [f"{path} ({status}) lacks {header_faults}"] if header_faults else []
    assert not faults
    assert {200, 302, 401, 403, 404, 405} <= statuses.keys(), statuses


@pytest.mark.parametrize("method", ["DELETE", "PATCH", "TRACE", "OPTIONS", "HEAD", "POST", "X"])
def test_responses_to_other_methods_have_the_security_headers(module_web: Web, method: str) -> None:
    for path in ("/admin/", "/api/agents", "/mcp", "/healthz", "/static/bonobot/forms.js", "/x"):
        status, header_faults = send_request(module_web, method, path)
        assert not header_faults, (path, status)


def test_responses_to_large_or_foreign_requests_have_the_security_headers(module_web: Web) -> None:
    token = create_token(
        factories.build_administrator(factories.Organization.objects.first()),
        name="t",
        role=Role.OWNER,
    )[1]
    bearer = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"}
    large = b"[" + b"1," * 3_000_000 + b"1]"
    for path, status in (("/api/mcp-servers", 413), ("/mcp", 413)):
        actual, header_faults = send_request(module_web, "POST", path, large, **bearer)
        assert (actual, header_faults) == (status, ""), path
    assert send_request(module_web, "GET", "/admin/", Host="elsewhere.example") == (400, "")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_responses_to_malformed_requests_have_the_security_headers(
    module_web: Web, request_bytes: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", module_web.port), timeout=30) as client:
        client.sendall(request_bytes)
        response = http.client.HTTPResponse(client)
        response.begin()
        assert (response.status, find_header_faults(response)) == (400, "")


def test_error_responses_have_the_security_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: Any) -> None:
        raise OSError("canary")

    monkeypatch.setattr(asgi.health_endpoints, "respond_healthz", fail)
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def request_health() -> None:
        scope = {"type": "http", "path": "/healthz", "headers": [], "query_string": b""}
        with pytest.raises(OSError, match="canary"):
            await asgi.application(scope, send, send)

    asyncio.run(request_health())
    assert messages[0]["status"] == 500
    assert {name.lower().encode() for name in REQUIRED} <= {
        name for name, _ in messages[0]["headers"]
    }
    assert b"canary" not in messages[1]["body"]


def test_event_streams_have_the_security_headers(module_web: Web) -> None:
    organization = factories.Organization.objects.first()
    session = factories.create_answered_session(factories.create_agent(organization))
    _, token = create_token(factories.build_administrator(organization), name="s", role=Role.OWNER)
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    status, header_faults = send_request(
        module_web, "GET", f"/api/sessions/{session.pk}/events", **headers
    )
    assert (status, header_faults) == (200, "")
