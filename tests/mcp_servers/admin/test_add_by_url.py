"""A server is added by its URL: checked, shown, then saved."""

from collections.abc import Iterator

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from mcp_servers.models import Server
from tests import admin_client
from tests.mcp_servers.test_find_server_at_url import run_server

PAGE = "mcp_servers_server_url"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """The SDK's server."""
    yield from run_server("tests.servers.sdk_server", "http")


@pytest.fixture(scope="module")
def protected_url() -> Iterator[str]:
    """A server with OAuth."""
    for origin in run_server("tests.servers.oauth_protected_server"):
        yield f"{origin}/mcp"


def test_the_tools_are_shown_before_the_server_is_saved(acme: Organization, origin: str) -> None:
    administrator = admin_client.sign_in(acme, None)
    page = administrator.post(PAGE, url=origin, do="check")
    assert "private_address" in page
    select = "Select “Allow private or loopback address” and check again."
    assert select in admin_client.get_text(page)
    page = admin_client.sign_in(acme, Role.OWNER).post(PAGE, url=origin, do="check")
    assert "A platform administrator can allow private" in admin_client.get_text(page)
    assert "Select “" not in admin_client.get_text(page)
    fields = {"url": origin, "allow_private": "on"}
    page = administrator.post(PAGE, **fields, do="check")
    assert "9 tools found" in admin_client.get_text(page)
    assert f'value="{origin}/mcp"' in page  # where it answered
    assert not Server.objects.exists()
    fields |= {"url": f"{origin}/mcp", "name": "docs"}
    administrator.post(PAGE, **fields, do="add")
    server = Server.objects.get()
    assert (server.name, server.endpoint_config["url"]) == ("docs", f"{origin}/mcp")
    page = administrator.post(PAGE, **fields, do="add")
    assert "name_taken" in page
    assert "9 tools found" in admin_client.get_text(page)


def test_a_server_that_requires_sign_in_offers_oauth_and_a_token(
    acme: Organization, protected_url: str
) -> None:
    administrator = admin_client.sign_in(acme, None)
    fields = {"url": protected_url, "allow_private": "on", "name": "crm"}
    page = admin_client.get_text(administrator.post(PAGE, **fields, do="check"))
    assert "The server requires sign-in" in page
    assert "Add and sign in with OAuth" in page
    page = administrator.post(PAGE, **fields, token="t0ken-of-a-person", do="check")
    assert "The server refused the token" in admin_client.get_text(page)
    assert "t0ken-of-a-person" not in page
    response = administrator.client.post(admin_client.build_url(PAGE), fields | {"do": "oauth"})
    server = Server.objects.get()
    assert server.interactive
    assert str(server.pk) in response.headers["Location"]


def test_a_token_is_saved_with_the_server_it_was_checked_with(
    acme: Organization, origin: str
) -> None:
    administrator = admin_client.sign_in(acme, None)
    fields = {"url": f"{origin}/mcp", "allow_private": "on", "name": "crm"}
    page = admin_client.get_text(administrator.post(PAGE, **fields, token="secret-1", do="check"))
    assert "Token accepted" in page
    other = fields | {"url": f"{origin}/mcp?other", "name": "other"}
    administrator.post(PAGE, **other, do="add")
    assert Server.objects.get().auth_type == "none"
    administrator.post(PAGE, **fields, token="secret-1", do="check")
    administrator.post(PAGE, **fields, do="add")
    server = Server.objects.get(name="crm")
    assert server.auth_type == "bearer_token"
    assert server.secrets.get().value.open() == "secret-1"


def test_a_problem_is_shown_with_its_remedy_and_other_ways(acme: Organization) -> None:
    owner = admin_client.sign_in(acme, Role.OWNER)
    page = owner.post(PAGE, url="https://nothing.invalid/mcp", do="check")
    assert "server_unreachable" in page
    assert "Not an MCP server" not in admin_client.get_text(page)
    assert admin_client.find_links(page, admin_client.build_url("mcp_servers_server_openapi"))
    admin_client.sign_in(acme, Role.MEMBER).get(PAGE, status=403)


def test_the_error_of_a_wrong_path_says_to_correct_it_and_how_to_add_a_rest_api(
    acme: Organization, origin: str
) -> None:
    administrator = admin_client.sign_in(acme, None)
    page = administrator.post(PAGE, url=f"{origin}/nothing", allow_private="on", do="check")
    text = admin_client.get_text(page)
    assert "Correct the path of its URL. Most servers use /mcp" in text
    assert "A REST API, not an MCP server? Use OpenAPI" in text
    assert "Other headers or settings?" not in text
