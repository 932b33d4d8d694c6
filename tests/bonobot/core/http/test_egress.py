"""The egress guard, tested by the connections that are made."""

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest
from django.utils import translation

from bonobot.core.http.connection_errors import UNKNOWN_HOST
from bonobot.core.http.egress import (
    EgressDenied,
    build_guarded_client,
    check_url,
    resolve_for_preview,
)
from bonobot.core.http.ip_addresses import AddressScope
from bonobot.core.i18n.localization import localize_text
from tests.bonobot.core.http.fake_network import OK, FakeNetwork, build_resolver
from tests.loopback_server import serve_connections


@asynccontextmanager
async def serve_raw(respond: Callable[[bytes], bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Serve raw responses on a loopback port; yield the URL and the received request heads."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                heads.append(head)
                writer.write(respond(head))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async with serve_connections(serve) as port:
        yield f"http://127.0.0.1:{port}/", heads


def is_denied(error: pytest.ExceptionInfo[EgressDenied], code: str) -> bool:
    return error.value.code == code and bool(str(error.value))


# --- checks of the URL


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
        "javascript:alert(1)",
        "//example.com/",
        "example.com",
        "",
        "http://",
        "http:///path",
        "http://user:secret@example.com/",
        "http://example.com@127.0.0.1/",
        "http://exa mple.com/",
        "http://example.com/\r\nX: y",
        "http://127.1.1.1:80#\\@example.com/",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://a..b/",
        "http://-example.com/",
        "http://ex%61mple.com/",
        "http://[2606:4700::1%25eth0]/",
        "http://[::1/",
        "http://[gggg::1]/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://1.2.3.4.5/",
        "http://425.510.425.510/",
        "http://example.0x10/",
        f"http://{'a' * 300}.example/",
        f"http://example.com/{'a' * 9000}",
    ],
)
def test_an_ambiguous_url_is_refused(url: str):
    with pytest.raises(EgressDenied) as error:
        check_url(url, allow_private=True)
    assert is_denied(error, "bad_url")
    assert error.value.remedy
    assert "``" not in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8000/mcp",
        "http://LOCALHOST./",
        "http://a.localhost/",
        "http://localhost.localdomain/",
        "http://127.0.0.1/",
        "http://127.0.0.1./",
        "https://10.0.0.1/mcp",
        "http://[::1]:3000/",
        "http://[::ffff:127.0.0.1]/",
        "http://[fd12:3456::1]/",
    ],
)
def test_a_private_url_needs_permission_and_the_error_says_whose(url: str):
    with pytest.raises(EgressDenied) as error:
        check_url(url, allow_private=False)
    assert is_denied(error, "private_address")
    assert "administrator" in error.value.remedy
    check_url(url, allow_private=True)


@pytest.mark.parametrize("url", ["http://169.254.169.254/", "http://[fd00:ec2::254]/x"])
def test_a_metadata_service_is_refused_even_with_permission(url: str):
    with pytest.raises(EgressDenied) as error:
        check_url(url, allow_private=True)
    assert is_denied(error, "egress_denied")
    assert "is a reserved address (" in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://mcp.example.com/mcp?key=value#part",
        "http://my_server:8080/",
        "https://xn--zca.de/",
        "https://bücher.example/",
        "https://93.184.216.34/",
        "https://[2606:4700::1111]/",
        "https://example.com./",
    ],
)
def test_a_public_url_passes_without_a_dns_lookup(url: str):
    check_url(url, allow_private=False)


# --- connections


async def test_the_checked_address_is_the_one_connected_to():
    network = FakeNetwork()
    resolve = build_resolver(["93.184.216.34"], ["127.0.0.1"])
    async with build_guarded_client(
        allow_private=False, resolve=resolve, socket_backend=network
    ) as client:
        response = await client.get("http://rebind.example/")
    assert response.text == "ok"
    assert network.connected == ["93.184.216.34"]


async def test_a_name_with_one_private_address_is_refused():
    network = FakeNetwork()
    resolve = build_resolver(["93.184.216.34", "10.0.0.5"])
    async with build_guarded_client(
        allow_private=False, resolve=resolve, socket_backend=network
    ) as client:
        with pytest.raises(EgressDenied) as error:
            await client.get("http://mixed.example/")
    assert is_denied(error, "private_address")
    assert "10.0.0.5" in str(error.value)
    assert network.connected == []


async def test_permission_for_private_addresses_doesnt_include_the_metadata_service():
    network = FakeNetwork()
    resolve = build_resolver(["169.254.169.254"])
    async with build_guarded_client(
        allow_private=True, resolve=resolve, socket_backend=network
    ) as client:
        with pytest.raises(EgressDenied) as error:
            await client.get("http://metadata.example/")
    assert is_denied(error, "egress_denied")
    assert str(error.value) == (
        "`metadata.example` resolves to `169.254.169.254`, a reserved address (link-local, used "
        "for cloud machine credentials). Connections to it aren't allowed."
    )
    assert network.connected == []


async def test_the_next_address_is_tried_if_one_refuses():
    network = FakeNetwork(dead=["2606:4700::1", "93.184.216.34"])
    resolve = build_resolver(["2606:4700::1", "93.184.216.34", "93.184.216.35"])
    async with build_guarded_client(
        allow_private=False, resolve=resolve, socket_backend=network
    ) as client:
        assert (await client.get("http://example.com/")).status_code == 200
    assert network.connected == ["2606:4700::1", "93.184.216.34", "93.184.216.35"]


async def test_the_last_error_is_reported_if_no_address_accepts():
    network = FakeNetwork(dead=["93.184.216.34"])
    resolve = build_resolver(["93.184.216.34"])
    async with build_guarded_client(
        allow_private=False, resolve=resolve, socket_backend=network, connect_s=5
    ) as client:
        with pytest.raises(httpx2.ConnectError, match="refused"):
            await client.get("http://example.com/")


async def test_a_name_without_addresses_is_a_connect_error():
    async with build_guarded_client(
        allow_private=False, resolve=build_resolver([]), socket_backend=FakeNetwork()
    ) as client:
        with pytest.raises(httpx2.ConnectError, match="no address"):
            await client.get("http://example.com/")


async def test_a_name_that_doesnt_resolve_is_a_connect_error():
    async def resolve(host: str, port: int) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    async with build_guarded_client(
        allow_private=False, resolve=resolve, socket_backend=FakeNetwork()
    ) as client:
        with pytest.raises(httpx2.ConnectError, match="can't be resolved") as caught:
            await client.get("http://nowhere.example/")
    stored_text = f"`web` can't be reached: {caught.value}. {UNKNOWN_HOST.remedy}"
    with translation.override("de"):
        assert localize_text(stored_text) == (
            "`web` ist nicht erreichbar: der Name nowhere.example kann nicht aufgelöst werden."
            " Korrigiere den Hostnamen in der URL."
        )


async def test_a_hanging_resolver_ends_at_the_connect_timeout():
    async def resolve(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        raise AssertionError

    async with asyncio.timeout(5):
        async with build_guarded_client(
            allow_private=False, resolve=resolve, socket_backend=FakeNetwork(), connect_s=0.05
        ) as client:
            with pytest.raises(httpx2.ConnectTimeout):
                await client.get("http://slow.example/")


async def test_local_sockets_are_refused():
    async with build_guarded_client(allow_private=True) as client:
        backend = client._transport._pool._network_backend  # type: ignore[attr-defined]
        with pytest.raises(EgressDenied):
            await backend.connect_unix_socket("/var/run/docker.sock")
        await backend.sleep(0)


async def test_a_client_checks_every_url():
    async with build_guarded_client(
        allow_private=False, resolve=build_resolver([]), socket_backend=FakeNetwork()
    ) as client:
        with pytest.raises(EgressDenied):
            await client.get("http://user@example.com/")


# --- responses


async def test_a_server_on_loopback_needs_permission():
    async with serve_raw(lambda head: OK) as (url, heads):
        async with build_guarded_client(allow_private=False) as client:
            with pytest.raises(EgressDenied):
                await client.get(url)
        assert heads == []
        async with build_guarded_client(allow_private=True, headers={"X-Key": "k"}) as client:
            assert (await client.get(url.replace("127.0.0.1", "localhost"))).text == "ok"
        assert b"accept-encoding: identity\r\n" in heads[0].lower()
        assert b"x-key: k" in heads[0].lower()


async def test_redirects_are_refused_even_if_requested():
    redirect = b"HTTP/1.1 307 T\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    async with (
        serve_raw(lambda head: redirect) as (url, heads),
        build_guarded_client(allow_private=True) as client,
    ):
        with pytest.raises(EgressDenied) as error:
            await client.get(url, follow_redirects=True)
    assert is_denied(error, "redirect_denied")
    assert error.value.extra["location"] == "http://169.254.169.254/"
    assert len(heads) == 1


async def test_an_encoded_body_is_refused_before_it_is_read():
    bomb = gzip.compress(bytes(10_000_000))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    async with (
        serve_raw(lambda _: head + bomb) as (url, _),
        build_guarded_client(allow_private=True) as client,
    ):
        with pytest.raises(EgressDenied) as error:
            await client.get(url)
    assert is_denied(error, "encoding_rejected")


async def test_a_body_over_the_limit_raises_an_error():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"5\r\nhello\r\n" * 5
    async with (
        serve_raw(lambda _: chunked) as (url, _),
        build_guarded_client(allow_private=True, max_body=20) as client,
    ):
        with pytest.raises(EgressDenied) as error:
            await client.get(url)
    assert is_denied(error, "response_too_large")


async def test_an_announced_length_over_the_limit_is_refused_immediately():
    announced = b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"
    async with (
        serve_raw(lambda _: announced) as (url, _),
        build_guarded_client(allow_private=True, max_body=20) as client,
    ):
        with pytest.raises(EgressDenied) as error:
            await client.get(url)
    assert is_denied(error, "response_too_large")


async def test_a_request_can_have_its_own_limit():
    async with (
        serve_raw(lambda _: OK) as (url, _),
        build_guarded_client(allow_private=True, max_body=1) as client,
    ):
        response = await client.get(url, extensions={"max_body": 2})
    assert response.text == "ok"


async def test_a_server_that_disconnects_is_an_httpx_error():
    async with (
        serve_raw(lambda _: b"") as (url, _),
        build_guarded_client(allow_private=True, read_s=0.1) as client,
    ):
        with pytest.raises(httpx2.ReadTimeout):
            await client.get(url)


async def test_cookies_arent_kept_between_requests():
    cookie = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
    async with (
        serve_raw(lambda _: cookie) as (url, heads),
        build_guarded_client(allow_private=True) as client,
    ):
        await client.get(url)
        await client.get(url)
    assert len(heads) == 2
    assert b"cookie" not in heads[1].lower()


async def test_proxy_variables_of_the_process_are_ignored(monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")
    async with (
        serve_raw(lambda _: OK) as (url, _),
        build_guarded_client(allow_private=True) as client,
    ):
        assert (await client.get(url)).text == "ok"


# --- previews


def test_a_preview_returns_the_addresses_of_a_host():
    assert {verdict.scope for verdict in resolve_for_preview("localhost")} == {AddressScope.PRIVATE}
    assert resolve_for_preview("[::1]")[0].description == "loopback address"


@pytest.mark.parametrize("host", ["does-not-exist.invalid", "a..b", "x" * 70 + ".example"])
def test_a_preview_of_an_unknown_host_is_empty(host: str):
    assert resolve_for_preview(host) == ()
