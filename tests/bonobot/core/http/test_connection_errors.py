"""Why connections fail, told from real sockets: each in words, and with what to do."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bonobot.core.http import connection_errors
from bonobot.core.http.connection_errors import ConnectionFailure, find_failure
from bonobot.core.http.egress import build_guarded_client
from tests import processes

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def resetting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    # Closed with a linger of nothing, the peer is told that the connection is gone.
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


async def speaking_otherwise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example.com ESMTP\r\n\r\n")
    await writer.drain()
    await reader.read()
    writer.close()


@asynccontextmanager
async def served(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    async with await asyncio.start_server(talk, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


async def failed(url: str, **options: float) -> ConnectionFailure:
    """Ask for a page; return why it wasn't to be had."""
    async with build_guarded_client(allow_private=True, **options) as client:  # type: ignore[arg-type]
        with pytest.raises(httpx2.HTTPError) as caught:
            await client.get(url)
    assert "Errno" not in str(caught.value)
    assert "bytearray" not in str(caught.value)
    known = find_failure(caught.value)
    assert known is not None
    assert str(caught.value) == known.reason
    return known


async def test_a_closed_port_is_reported_as_refused() -> None:
    assert (
        await failed(f"http://127.0.0.1:{processes.unused_port()}/")
    ).remedy == connection_errors.REFUSED.remedy


async def test_an_unknown_host_is_reported() -> None:
    assert (await failed("http://nowhere.invalid/")).remedy == connection_errors.UNKNOWN_HOST.remedy


async def test_a_server_that_accepts_and_sends_nothing_is_reported() -> None:
    async with served(silent) as port:
        assert (
            await failed(f"http://127.0.0.1:{port}/", read_s=0.05)
        ).remedy == connection_errors.SILENT.remedy


async def test_a_closed_connection_is_reported() -> None:
    async with served(resetting) as port:
        assert (
            await failed(f"http://127.0.0.1:{port}/")
        ).remedy == connection_errors.DISCONNECTED.remedy


async def test_a_response_that_isnt_http_is_reported() -> None:
    async with served(speaking_otherwise) as port:
        assert (
            await failed(f"http://127.0.0.1:{port}/")
        ).remedy == connection_errors.NO_HTTP.remedy


async def test_a_server_without_tls_is_reported() -> None:
    async with served(speaking_otherwise) as port:
        assert (
            await failed(f"https://127.0.0.1:{port}/")
        ).remedy == connection_errors.NO_TLS.remedy


async def test_an_untrusted_certificate_is_reported(tmp_path: Path) -> None:
    async with served(silent, self_signed(tmp_path)) as port:
        found = await failed(f"https://127.0.0.1:{port}/")
    assert found.remedy == connection_errors.UNTRUSTED_REMEDY
    assert "self-signed" in found.reason


def test_other_errors_keep_their_own_text() -> None:
    assert find_failure(ValueError("odd")) is None
    assert (
        connection_errors.explain_error(ConnectionError("the connection is closed"))
        == "the connection is closed"
    )


def self_signed(folder: Path) -> ssl.SSLContext:
    """Return what a server with a certificate that nobody vouches for has."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = folder / "both.pem"
    kept = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem.write_bytes(kept + made.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
