"""`bonobot mcp login`, and adding servers with a sign-in."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.conf import settings
from django.db import connections

from bonobot.accounts.roles import Role
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.cli import oauth_logins
from mcp_servers.models import Server
from mcp_servers.oauth_client import access_tokens
from mcp_servers.oauth_client.token_requests import OAuthTokens
from mcp_servers.presets.sync_catalog import load_presets
from tests import factories, rest

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def linear(bonobot):
    load_presets()
    result = bonobot("mcp", "add", "linear", "--preset", "linear", "--json")
    assert result.status == 0, result.err
    return result.json


def address():
    return f"{settings.BONOBOT_URL}/oauth/start/{Server.objects.get(name='linear').pk}"


def sign_in():
    grant = access_tokens.get_or_create_grant(
        build_endpoint(Server.objects.get(name="linear")).account
    )
    access_tokens.store_tokens(grant, None, OAuthTokens("token", "", None, ""))


def test_adding_a_preset_with_a_sign_in_prints_its_url(linear):
    assert linear["auth_config"]["grant"] == "authorization_code"
    assert linear["sign_in"] == {"state": "needed", "url": address()}
    assert linear["status"] == "disconnected"  # without a useless request


def test_the_url_is_printed_for_personal_logins_too(bonobot):
    load_presets()
    result = bonobot("mcp", "add", "linear", "--preset", "linear")
    assert address() in result.out
    assert "bonobot mcp login linear" in result.out


def test_status_shows_where_a_login_is_needed(bonobot, linear):
    (server,) = bonobot("mcp", "status", "--json").json
    assert server["sign_in"]["state"] == "needed"
    assert "needed" in bonobot("mcp", "status").out
    sign_in()
    (server,) = bonobot("mcp", "status", "--json").json
    assert server["sign_in"]["state"] == "signed_in"


def test_printing_only_the_url_doesnt_wait(bonobot, linear):
    result = bonobot("mcp", "login", "linear", "--no-wait", "--json")
    assert result.json == {"server": "linear", "url": address(), "signed_in": False}


def test_a_timeout_has_a_code(bonobot, linear):
    result = bonobot("mcp", "login", "linear", "--timeout", "0")
    assert result.status == 1
    assert "needs_reauth" in result.err
    assert address() in result.err


def sign_in_in_thread():
    """Sign in in another thread and close its database connections."""
    try:
        sign_in()
    finally:
        connections.close_all()


def test_an_earlier_login_doesnt_end_the_wait(bonobot, linear, monkeypatch):
    sign_in()
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(sign_in_in_thread).result()

    monkeypatch.setattr(oauth_logins, "pause", pause)
    monkeypatch.setattr(
        oauth_logins, "discover_with_progress", lambda cli, servers: {"linear": Outcome()}
    )
    result = bonobot("mcp", "login", "linear", "--json")
    assert result.status == 0, result.err
    assert (len(pauses), result.json["signed_in"]) == (1, True)


class Outcome:
    problem = None

    def as_dict(self):
        return {}

    def format_summary(self):
        return ""


def test_a_server_without_a_login_is_reported(bonobot):
    bonobot("mcp", "add", "plain", "--url", "http://127.0.0.1:9/mcp", "--allow-private")
    result = bonobot("mcp", "login", "plain", "--json")
    assert result.status == 1
    assert "no_login" in result.err


def test_logging_out_deletes_the_tokens_and_reports_it(bonobot, linear):
    sign_in()
    result = bonobot("mcp", "logout", "linear", "--json")
    assert result.json == {"server": "linear", "url": address(), "signed_in": False}
    (server,) = bonobot("mcp", "status", "--json").json
    assert server["sign_in"]["state"] == "needed"


def test_rest_logs_out_of_servers_with_a_login(bonobot, linear):
    sign_in()
    server = Server.objects.get(name="linear")
    owner = rest.as_role(server.organization, Role.OWNER)
    assert owner.delete(f"mcp-servers/{server.pk}/sign-in").status == 204
    assert owner.get(f"mcp-servers/{server.pk}").json["sign_in"]["state"] == "needed"
    plain = factories.create_http_server(
        server.organization, "https://mcp.example.com/mcp", "plain"
    )
    assert owner.delete(f"mcp-servers/{plain.pk}/sign-in").code == "no_login"
