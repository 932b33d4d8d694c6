"""URLs are checked before a server is added: transport, sign-in and tools, without storing it."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden, Problem
from mcp_servers.find_server_at_url import find_server_at_url
from mcp_servers.models import Server
from mcp_servers.server_names import suggest_server_name
from tests import factories
from tests.parts import ROOT


def run_server(*arguments: str) -> Iterator[str]:
    """Run a test server that prints its port; yield its origin."""
    with subprocess.Popen(
        [sys.executable, "-m", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().split()[1]}"
        process.terminate()


@pytest.fixture(scope="module")
def protected_origin() -> Iterator[str]:
    """A server with OAuth and one tool."""
    yield from run_server("tests.servers.oauth_protected_server")


@pytest.fixture(scope="module")
def sse_origin() -> Iterator[str]:
    """The SDK's server, with the older transport."""
    yield from run_server("tests.servers.sdk_server", "sse")


def test_a_server_with_oauth_needs_sign_in(acme: Organization, protected_origin: str) -> None:
    principal = factories.build_administrator(acme)
    check = find_server_at_url(principal, f"{protected_origin}/mcp", allow_private=True)
    assert (check.needs_sign_in, check.has_oauth) == (True, True)
    check = find_server_at_url(
        principal, f"{protected_origin}/mcp", token="wrong", allow_private=True
    )
    assert check.needs_sign_in
    assert not Server.objects.exists()


def test_the_older_transport_is_detected(acme: Organization, sse_origin: str) -> None:
    principal = factories.build_administrator(acme)
    check = find_server_at_url(principal, f"{sse_origin}/sse", allow_private=True)
    assert check.transport == "HTTP+SSE"
    assert "echo" in [tool.name for tool in check.tools]
    assert not Server.objects.exists()


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("not a url", "bad_url"),
        ("http://127.0.0.1:9/mcp", "private_address"),
        ("https://nothing.invalid/mcp", "server_unreachable"),
    ],
)
def test_a_url_that_does_not_work_is_refused_with_a_remedy(
    acme: Organization, url: str, code: str
) -> None:
    with pytest.raises(Problem) as caught:
        find_server_at_url(factories.build_administrator(acme), url)
    assert caught.value.code == code
    assert caught.value.remedy


def test_only_people_who_manage_servers_can_check_urls(acme: Organization) -> None:
    with pytest.raises(Forbidden):
        find_server_at_url(
            factories.create_member(acme, Role.MEMBER), "https://mcp.example.com/mcp"
        )


@pytest.mark.parametrize(
    ("url", "declared", "name"),
    [
        ("https://mcp.sentry.dev/mcp", "", "sentry"),
        ("https://example.com", "", "example"),
        ("https://mcp.example.co.uk/mcp", "", "example"),
        ("http://127.0.0.1:9000/mcp", "My Server", "my-server"),
        ("http://localhost:9000/mcp", "", "server"),
        ("http://[::1]:9000/mcp", "", "server"),
    ],
)
def test_a_name_is_suggested_from_the_host(url: str, declared: str, name: str) -> None:
    assert suggest_server_name(url, declared) == name
