"""Cross-origin requests: listed origins can use /api, with a token and without cookies."""

import pytest
from django.test import Client

FRONTEND = "https://app.example.com"
PREFLIGHT = {"Access-Control-Request-Method": "POST"}

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _allow_frontend(settings) -> None:
    settings.BONOBOT_CORS_ORIGINS = (FRONTEND,)


def test_an_allowed_origin_gets_the_allowed_methods_and_headers(client: Client):
    response = client.options("/api/agents", headers={"Origin": FRONTEND} | PREFLIGHT)
    assert response.status_code == 204
    assert response["Access-Control-Allow-Origin"] == FRONTEND
    assert "Authorization" in response["Access-Control-Allow-Headers"]
    assert "PATCH" in response["Access-Control-Allow-Methods"]


def test_an_allowed_origin_can_read_responses_and_problems(client: Client):
    response = client.get("/api/agents", headers={"Origin": FRONTEND})
    assert response.status_code == 401
    assert response["Access-Control-Allow-Origin"] == FRONTEND
    assert "WWW-Authenticate" in response["Access-Control-Expose-Headers"]
    assert "Origin" in response["Vary"]


def test_cookies_of_other_origins_are_ignored(client: Client):
    for response in (
        client.options("/api/agents", headers={"Origin": FRONTEND} | PREFLIGHT),
        client.get("/api/agents", headers={"Origin": FRONTEND}),
    ):
        assert "Access-Control-Allow-Credentials" not in response


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://app.example.com.evil"])
def test_other_origins_get_no_cors_headers(client: Client, origin):
    preflight = client.options("/api/agents", headers={"Origin": origin} | PREFLIGHT)
    response = client.get("/api/agents", headers={"Origin": origin})
    assert preflight.status_code == 401
    assert "Access-Control-Allow-Origin" not in preflight
    assert "Access-Control-Allow-Origin" not in response
    assert "Origin" in response["Vary"]


def test_only_the_api_has_cors_headers(client: Client):
    response = client.get("/admin/login/", headers={"Origin": FRONTEND})
    assert "Access-Control-Allow-Origin" not in response


def test_without_the_setting_there_are_no_cors_headers(client: Client, settings):
    settings.BONOBOT_CORS_ORIGINS = ()
    response = client.get("/api/agents", headers={"Origin": FRONTEND})
    assert "Access-Control-Allow-Origin" not in response


OAUTH_PATHS = ["/.well-known/oauth-authorization-server", "/oauth/register", "/oauth/token"]


@pytest.mark.parametrize("path", [*OAUTH_PATHS, "/oauth/revoke"])
def test_a_client_in_a_browser_can_be_authorized(client: Client, path: str):
    headers = {"Access-Control-Request-Headers": "mcp-protocol-version"}
    preflight = client.options(path, headers={"Origin": FRONTEND} | PREFLIGHT | headers)
    assert preflight.status_code == 204
    assert "MCP-Protocol-Version" in preflight["Access-Control-Allow-Headers"]
    send = client.get if path.startswith("/.well-known") else client.post
    response = send(path, headers={"Origin": FRONTEND})
    assert response["Access-Control-Allow-Origin"] == FRONTEND
    assert "Origin" in response["Vary"]
    for reply in (preflight, response):
        assert "Access-Control-Allow-Credentials" not in reply
    assert "Access-Control-Allow-Origin" not in send(
        path, headers={"Origin": "https://evil.example"}
    )


@pytest.mark.parametrize("path", ["/oauth/authorize", "/oauth/callback", "/oauth/token/more"])
def test_no_other_origin_can_read_the_consent_pages(client: Client, path: str):
    for response in (
        client.options(path, headers={"Origin": FRONTEND} | PREFLIGHT),
        client.get(path, headers={"Origin": FRONTEND}),
    ):
        assert "Access-Control-Allow-Origin" not in response
