"""Errors of real connections: each has a reason and a remedy."""

import asyncio
import socket
import ssl
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
from tests.loopback_server import serve_connections


async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def reset_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    # Closing with a linger time of zero sends a reset.
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


async def speak_smtp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example.com ESMTP\r\n\r\n")
    await writer.drain()
    await reader.read()
    writer.close()


async def fetch_failure(url: str, **options: float) -> ConnectionFailure:
    """Request a page; return the connection failure."""
    async with build_guarded_client(allow_private=True, **options) as client:  # type: ignore[arg-type]
        with pytest.raises(httpx2.HTTPError) as caught:
            await client.get(url)
    assert "Errno" not in str(caught.value)
    assert "bytearray" not in str(caught.value)
    failure = find_failure(caught.value)
    assert failure is not None
    assert str(caught.value) == failure.reason
    return failure


async def test_a_closed_port_is_reported_as_refused() -> None:
    assert (
        await fetch_failure(f"http://127.0.0.1:{processes.find_unused_port()}/")
    ).remedy == connection_errors.REFUSED.remedy


async def test_an_unknown_host_is_reported() -> None:
    failure = await fetch_failure("http://nowhere.invalid/")
    without_dns = connection_errors.NO_DNS.remedy  # on a machine that has none
    assert failure.remedy in (connection_errors.UNKNOWN_HOST.remedy, without_dns)


def test_a_name_that_doesnt_exist_is_told_from_missing_dns_and_missing_tls_from_failed_tls() -> (
    None
):
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert find_failure(unknown) is connection_errors.UNKNOWN_HOST
    temporary = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert find_failure(temporary) is connection_errors.NO_DNS
    assert find_failure(ssl.SSLError(1, "handshake failure")) is connection_errors.TLS_FAILED


async def test_a_server_that_accepts_and_sends_nothing_is_reported() -> None:
    async with serve_connections(stay_silent) as port:
        assert (
            await fetch_failure(f"http://127.0.0.1:{port}/", read_s=0.05)
        ).remedy == connection_errors.SILENT.remedy


async def test_a_closed_connection_is_reported() -> None:
    async with serve_connections(reset_connection) as port:
        assert (
            await fetch_failure(f"http://127.0.0.1:{port}/")
        ).remedy == connection_errors.DISCONNECTED.remedy


async def test_a_response_that_isnt_http_is_reported() -> None:
    async with serve_connections(speak_smtp) as port:
        assert (
            await fetch_failure(f"http://127.0.0.1:{port}/")
        ).remedy == connection_errors.NO_HTTP.remedy


async def test_a_server_without_tls_is_reported() -> None:
    async with serve_connections(speak_smtp) as port:
        assert (
            await fetch_failure(f"https://127.0.0.1:{port}/")
        ).remedy == connection_errors.NO_TLS.remedy


async def test_an_untrusted_certificate_is_reported(tmp_path: Path) -> None:
    async with serve_connections(stay_silent, build_self_signed_context(tmp_path)) as port:
        failure = await fetch_failure(f"https://127.0.0.1:{port}/")
    assert failure.remedy == connection_errors.UNTRUSTED_REMEDY
    assert "self-signed" in failure.reason


def test_other_errors_keep_their_own_text() -> None:
    assert find_failure(ValueError("odd")) is None
    assert (
        connection_errors.explain_error(ConnectionError("the connection is closed"))
        == "the connection is closed"
    )


def build_self_signed_context(folder: Path) -> ssl.SSLContext:
    """Build a TLS context with a self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = folder / "both.pem"
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem.write_bytes(key_pem + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
