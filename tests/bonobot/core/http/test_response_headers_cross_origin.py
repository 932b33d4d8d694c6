"""Other origins: those that are listed may use /api, with a token and without cookies."""

import pytest
from django.test import Client

FRONTEND = "https://app.example.com"
PREFLIGHT = {"Access-Control-Request-Method": "POST"}

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _listed(settings) -> None:
    settings.BONOBOT_CORS_ORIGINS = (FRONTEND,)


def test_an_allowed_origin_gets_the_allowed_methods_and_headers(client: Client):
    answer = client.options("/api/agents", headers={"Origin": FRONTEND} | PREFLIGHT)
    assert answer.status_code == 204
    assert answer["Access-Control-Allow-Origin"] == FRONTEND
    assert "Authorization" in answer["Access-Control-Allow-Headers"]
    assert "PATCH" in answer["Access-Control-Allow-Methods"]


def test_an_allowed_origin_can_read_responses_and_problems(client: Client):
    answer = client.get("/api/agents", headers={"Origin": FRONTEND})
    assert answer.status_code == 401
    assert answer["Access-Control-Allow-Origin"] == FRONTEND
    assert "WWW-Authenticate" in answer["Access-Control-Expose-Headers"]
    assert "Origin" in answer["Vary"]


def test_cookies_of_other_origins_are_ignored(client: Client):
    for answer in (
        client.options("/api/agents", headers={"Origin": FRONTEND} | PREFLIGHT),
        client.get("/api/agents", headers={"Origin": FRONTEND}),
    ):
        assert "Access-Control-Allow-Credentials" not in answer


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://app.example.com.evil"])
def test_other_origins_get_no_cors_headers(client: Client, origin):
    asked = client.options("/api/agents", headers={"Origin": origin} | PREFLIGHT)
    read = client.get("/api/agents", headers={"Origin": origin})
    assert asked.status_code == 401
    assert "Access-Control-Allow-Origin" not in asked
    assert "Access-Control-Allow-Origin" not in read
    assert "Origin" in read["Vary"]


def test_only_the_api_has_cors_headers(client: Client):
    answer = client.get("/admin/login/", headers={"Origin": FRONTEND})
    assert "Access-Control-Allow-Origin" not in answer


def test_without_the_setting_there_are_no_cors_headers(client: Client, settings):
    settings.BONOBOT_CORS_ORIGINS = ()
    answer = client.get("/api/agents", headers={"Origin": FRONTEND})
    assert "Access-Control-Allow-Origin" not in answer


LETTING_IN = ["/.well-known/oauth-authorization-server", "/oauth/register", "/oauth/token"]


@pytest.mark.parametrize("path", [*LETTING_IN, "/oauth/revoke"])
def test_a_client_in_a_browser_can_be_authorized(client: Client, path: str):
    headers = {"Access-Control-Request-Headers": "mcp-protocol-version"}
    asked = client.options(path, headers={"Origin": FRONTEND} | PREFLIGHT | headers)
    assert asked.status_code == 204
    assert "MCP-Protocol-Version" in asked["Access-Control-Allow-Headers"]
    send = client.get if path.startswith("/.well-known") else client.post
    answer = send(path, headers={"Origin": FRONTEND})
    assert answer["Access-Control-Allow-Origin"] == FRONTEND
    assert "Origin" in answer["Vary"]
    for told in (asked, answer):
        assert "Access-Control-Allow-Credentials" not in told
    assert "Access-Control-Allow-Origin" not in send(
        path, headers={"Origin": "https://evil.example"}
    )


@pytest.mark.parametrize("path", ["/oauth/authorize", "/oauth/callback", "/oauth/token/more"])
def test_no_other_origin_can_read_the_consent_pages(client: Client, path: str):
    for answer in (
        client.options(path, headers={"Origin": FRONTEND} | PREFLIGHT),
        client.get(path, headers={"Origin": FRONTEND}),
    ):
        assert "Access-Control-Allow-Origin" not in answer
