"""Client metadata documents from a real site over TLS: which responses are refused."""

import asyncio
import gzip
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpcore2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from oauth2_provider.cimd import CIMDError

from bonobot.core.http import egress, network_backend
from bonobot.core.runtime import get_runtime
from bonobot.oauth_server import client_metadata_documents
from bonobot.oauth_server.client_metadata_documents import ClientMetadataFetcher
from tests.bonobot.core.http.fake_network import build_resolver
from tests.loopback_server import serve_connections

pytestmark = pytest.mark.django_db(transaction=True)

HOST = "client.example.com"
ID = f"https://{HOST}/id.json"
DOCUMENT = {"client_id": ID, "client_name": "Desk", "redirect_uris": ["http://127.0.0.1/callback"]}
PUBLIC, PRIVATE = "93.184.215.14", "10.0.0.1"
TOTAL_S = 1.0  # the timeout of a fetch here


def build_response(
    body: bytes | None = None,
    *,
    status: str = "200 OK",
    kind: str = "application/json",
    **headers: str,
) -> bytes:
    body = json.dumps(DOCUMENT).encode() if body is None else body
    lines = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def build_redirect(status: str, location: str) -> bytes:
    return build_response(b"", status=status, Location=location)


def build_document(**changes: Any) -> bytes:
    return build_response(json.dumps(DOCUMENT | changes).encode())


CHUNK = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
REFUSED: dict[str, bytes] = {
    "a permanent redirect": build_redirect("301 Moved Permanently", "https://example.com/id.json"),
    "a redirect to itself": build_redirect("302 Found", ID),
    "a redirect to another document": build_redirect("307 Temporary Redirect", f"{ID}?a"),
    "a redirect to a private address": build_redirect("308 Permanent Redirect", "https://10.0.0.1"),
    "a redirect with a document": build_response(status="303 See Other", Location=ID),
    "no content type": build_response(kind=""),
    "a page": build_response(kind="text/html"),
    "text": build_response(kind="text/plain"),
    "JSON as text": build_response(kind="text/json"),
    "JSON lines": build_response(kind="application/json-seq"),
    "a script": build_response(kind="application/javascript"),
    "a document that is too large": build_document(client_uri="x" * 17_000),
    "a size that is too large": build_response(Content_Length="99999999"),
    "chunks without an end": build_response(b"", Content_Length="", Transfer_Encoding="chunked")
    + CHUNK * 3,
    "compression": build_response(
        gzip.compress(json.dumps(DOCUMENT).encode()), Content_Encoding="gzip"
    ),
    "a truncated document": build_response(Content_Length="999"),
    "not JSON": build_response(b"client"),
    "a list": build_response(json.dumps([DOCUMENT]).encode()),
    "deep nesting": build_response(b'{"a":' * 3_000 + b"1" + b"}" * 3_000),
    "no client_id": build_response(json.dumps({**DOCUMENT, "client_id": None}).encode()),
    "another client_id": build_document(client_id="https://example.com/id.json"),
    "a client_id with another case": build_document(client_id=ID.replace("client", "Client")),
    "a client_id with a port": build_document(client_id=ID.replace(HOST, f"{HOST}:443")),
    "a client_id with a trailing slash": build_document(client_id=f"{ID}/"),
    "a redirect URI of a script": build_document(redirect_uris=["javascript:alert(1)"]),
    "an http redirect URI": build_document(redirect_uris=["http://example.com/a"]),
    "no redirect URIs": build_document(redirect_uris=[]),
    "partial content": build_response(status="206 Partial Content"),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "not found": build_response(status="404 Not Found"),
    "an error": build_response(status="500 Internal Server Error"),
    "no HTTP": b"hello\r\n\r\n",
    "nothing": b"",
}


def build_tls_context(
    folder: Path, host: str = HOST, *, days: int = 1, age_days: int = 2
) -> ssl.SSLContext:
    """Return a server's TLS context; its certificate is in `folder`/`cert.pem`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=age_days))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public_pem = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "both.pem").write_bytes(private_pem + public_pem)
    (folder / "cert.pem").write_bytes(public_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    return context


async def wait_for_close(reader: asyncio.StreamReader, seconds: float) -> None:
    """Wait until the client closes, at most this long."""
    with suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1), seconds or 0.001)


class Site(network_backend.AsyncioNetworkBackend):
    """A site on the loopback that connections to all addresses reach."""

    def __init__(self) -> None:
        super().__init__()
        self.answer, self.delay_s, self.byte_delay_s = b"", 0.0, 0.0
        self.port, self.addresses = 0, list[str]()

    async def connect_tcp(
        self, host: str, port: int, *args: Any, **kwargs: Any
    ) -> httpcore2.AsyncNetworkStream:
        self.addresses.append(host)
        return await super().connect_tcp("127.0.0.1", self.port, *args, **kwargs)

    @asynccontextmanager
    async def serve(self, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
        async with serve_connections(self._respond, tls) as self.port:
            yield

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await wait_for_close(reader, self.delay_s)
            step = 1 if self.byte_delay_s else max(1, len(self.answer))
            for start in range(0, len(self.answer), step):
                writer.write(self.answer[start : start + step])
                await writer.drain()
                await wait_for_close(reader, self.byte_delay_s)
        except (OSError, asyncio.IncompleteReadError):
            return  # the client closed


Fetch = Callable[..., tuple[dict[str, Any], int]]


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def fetch(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fetch:
    """Return a function that fetches the document; `tls` is the site's context."""
    monkeypatch.setattr(client_metadata_documents, "TOTAL_TIMEOUT_S", TOTAL_S)

    def fetch_document(
        tls: ssl.SSLContext | None, address: str = PUBLIC, *, trusted: bool = True
    ) -> tuple[dict[str, Any], int]:
        build_client = partial(
            egress.build_guarded_client, resolve=build_resolver([address]), socket_backend=site
        )
        monkeypatch.setattr(client_metadata_documents, "build_guarded_client", build_client)
        if trusted:
            trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
            monkeypatch.setattr(egress, "build_ssl_context", lambda: trusting)
        stack = site.serve(tls)
        get_runtime().call(stack.__aenter__)
        try:
            return ClientMetadataFetcher().fetch(ID)
        finally:
            get_runtime().call(stack.__aexit__, None, None, None)

    return fetch_document


def test_a_document_is_read_over_tls(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    site.answer = build_response(kind="application/json; charset=utf-8")
    document, _lifetime_s = fetch(build_tls_context(tmp_path))
    assert document["client_id"] == ID
    assert site.addresses == [PUBLIC]


@pytest.mark.parametrize("name", REFUSED)
def test_a_response_without_a_valid_document_is_refused(
    site: Site, fetch: Fetch, tmp_path: Path, name: str
) -> None:
    site.answer = REFUSED[name]
    with pytest.raises(CIMDError):
        fetch(build_tls_context(tmp_path))
    assert site.addresses == [PUBLIC]  # one request, no redirect


@pytest.mark.parametrize("delays", [{"delay_s": 60}, {"byte_delay_s": 0.2}])
def test_a_slow_site_is_given_up_after_the_timeout(
    site: Site, fetch: Fetch, tmp_path: Path, delays: dict[str, float]
) -> None:
    site.answer = build_response()
    for name, value in delays.items():
        setattr(site, name, value)
    started = time.monotonic()
    with pytest.raises(CIMDError):
        fetch(build_tls_context(tmp_path))
    assert time.monotonic() - started < TOTAL_S + 4


CERTIFICATES: dict[str, tuple[dict[str, Any], bool]] = {
    "of another host": ({"host": "example.com"}, True),
    "that expired": ({"days": -1}, True),
    "that isn't valid yet": ({"days": 3, "age_days": -2}, True),
    "of an unknown authority": ({}, False),
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_an_invalid_certificate_is_refused(
    site: Site, fetch: Fetch, tmp_path: Path, name: str
) -> None:
    values, trusted = CERTIFICATES[name]
    site.answer = build_response()
    with pytest.raises(CIMDError):
        fetch(build_tls_context(tmp_path, **values), trusted=trusted)


def test_a_site_without_tls_is_refused(site: Site, fetch: Fetch, tmp_path: Path) -> None:
    build_tls_context(tmp_path)
    site.answer = build_response()
    with pytest.raises(CIMDError):
        fetch(None)


@pytest.mark.parametrize(
    "address",
    [PRIVATE, "127.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::7f00:1"],
)
def test_a_name_with_a_private_address_isnt_connected_to(
    site: Site, fetch: Fetch, tmp_path: Path, address: str
) -> None:
    site.answer = build_response()
    with pytest.raises(CIMDError):
        fetch(build_tls_context(tmp_path), address)
    assert site.addresses == []
