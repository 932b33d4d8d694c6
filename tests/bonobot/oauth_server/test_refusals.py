"""Requests with foreign, expired, used or otherwise invalid codes and tokens are refused."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone
from oauth2_provider.models import AccessToken, Application, Grant, RefreshToken

from agents.models import Agent
from bonobot.accounts.members import update_member_role
from bonobot.accounts.models import Membership, Organization, Token, User
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server
from tests import factories
from tests.agents.gateway.conftest import GatewayClient
from tests.bonobot.oauth_server.oauth_client import (
    AGENT,
    ALLOW,
    RESOURCE,
    VERIFIER,
    OAuthClient,
    error,
)

pytestmark = pytest.mark.django_db(transaction=True)

ORIGIN = RESOURCE.removesuffix(AGENT)


def is_valid(gateway_client: GatewayClient, text: str, path: str = AGENT) -> bool:
    return gateway_client.modern(path, "tools/list", token=text).status == 200


def test_an_authorized_client_calls_the_endpoint_and_refreshes_its_token(
    ide: OAuthClient, gateway_client: GatewayClient, workshop: Server
) -> None:
    first = ide.authorize()
    assert (first["token_type"], first["expires_in"], first["scope"]) == (
        "Bearer",
        3600,
        "mcp:tools",
    )
    assert first["access_token"].startswith("bno_")
    assert is_valid(gateway_client, first["access_token"])
    echo = {"name": "mcp_workshop_echo", "arguments": {"text": "hello"}}
    response = gateway_client.modern(AGENT, "tools/call", echo, token=first["access_token"])
    assert response.result["isError"] is False
    row = AuditRow.objects.filter(actor_label="IDE (olga)").order_by("seq").last()
    assert row is not None
    second = ide.refresh(first["refresh_token"]).json()
    assert not is_valid(gateway_client, first["access_token"])
    assert is_valid(gateway_client, second["access_token"])


# -- invalid authorization requests ---------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"client_id": "nobody"},
        {"client_id": None},
        {"client_id": "x\x00"},
        {"redirect_uri": "https://elsewhere.example.com/"},
        {"redirect_uri": "http://127.0.0.1:4711/callback/more"},
        {"redirect_uri": "http://127.0.0.1:4711/callback?x=1"},
        {"redirect_uri": "http://127.0.0.1:4711/callback#x"},
        {"redirect_uri": "http://localhost:4711/callback"},
        {"redirect_uri": "http://x@127.0.0.1:4711/callback"},
        {"redirect_uri": "javascript:alert(1)"},
        {"state": ["a", "b"]},
    ],
)
def test_nobody_is_redirected_to_an_unregistered_uri(
    ide: OAuthClient, changed: dict[str, Any]
) -> None:
    for response in (ide.open_consent(**changed), ide.submit_consent(**changed)):
        assert response.status_code == 400
        assert "Location" not in response
        assert b"Return to client" not in response.content


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"code_challenge": None, "code_challenge_method": None}, "invalid_request"),
        ({"code_challenge_method": "plain", "code_challenge": VERIFIER}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"resource": None}, "invalid_target"),
        ({"resource": "https://elsewhere.example.com/mcp"}, "invalid_target"),
        ({"resource": f"{ORIGIN}/api"}, "invalid_target"),
        ({"resource": [RESOURCE, f"{ORIGIN}/mcp"]}, "invalid_target"),
        ({"scope": "mcp:tools api"}, "invalid_scope"),
        ({"scope": "everything"}, "invalid_scope"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": None}, "invalid_request"),
        ({"resource": f"{ORIGIN}/mcp/agents/nobody"}, "access_denied"),
    ],
)
def test_errors_are_sent_to_the_client_only_through_the_browser(
    ide: OAuthClient, changed: dict[str, Any], code: str
) -> None:
    page = ide.open_consent(**changed)
    assert page.status_code == 400
    assert "Location" not in page
    assert b"Return to client" in page.content
    redirect = ide.read_redirect({"answer": "deny"}, **changed)
    assert (redirect["error"], redirect["state"], redirect["iss"]) == (code, ide.state, ORIGIN)
    assert not Token.objects.exists()


def test_a_person_who_isnt_signed_in_is_asked_to_sign_in(helper: Agent) -> None:
    oauth_client = OAuthClient()
    for response in (
        oauth_client.open_consent(),
        oauth_client.submit_consent(),
        oauth_client.open_consent(redirect_uri="https://x"),
    ):
        assert response.status_code == 302
        assert response["Location"].startswith("/admin/login/?next=/oauth/authorize")


def test_a_denied_consent_returns_access_denied(ide: OAuthClient) -> None:
    redirect = ide.read_redirect({"answer": "deny"})
    assert (redirect["error"], redirect["state"], redirect["iss"]) == (
        "access_denied",
        ide.state,
        ORIGIN,
    )
    assert not Token.objects.exists()


def test_the_consent_page_cant_be_framed_and_posts_only_to_itself(ide: OAuthClient) -> None:
    page = ide.open_consent()
    assert page.status_code == 200
    assert page["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in page["Content-Security-Policy"]
    assert "form-action 'self' http: https:" in page["Content-Security-Policy"]
    assert "no-store" in page["Cache-Control"]


def test_another_site_cant_submit_the_consent(ide: OAuthClient, olga: User) -> None:
    from django.test import Client

    browser = Client(enforce_csrf_checks=True)
    browser.force_login(olga)
    assert browser.post(ide.build_authorize_url(), ALLOW).status_code == 403


@pytest.mark.parametrize(
    "answer",
    [
        ALLOW | {"role": "owner"},
        ALLOW | {"role": ""},
        ALLOW | {"scopes": []},
        ALLOW | {"scopes": ["mcp:tools", "mcp:manage"]},
        ALLOW | {"agents": ["00000000-0000-0000-0000-000000000000"]},
    ],
)
def test_a_consent_cant_grant_what_the_page_didnt_offer(
    ide: OAuthClient, answer: dict[str, Any]
) -> None:
    assert ide.submit_consent(answer).status_code == 400
    assert not Token.objects.exists()


# -- codes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"code_verifier": "w" * 43}, "invalid_grant"),
        ({"code_verifier": None}, "invalid_request"),
        ({"redirect_uri": "http://127.0.0.1:4712/callback"}, "invalid_request"),
        ({"client_id": "nobody"}, "invalid_client"),
        ({"client_id": "https://client.example.com/id.json"}, "invalid_client"),
        ({"code": "bnc_x_y"}, "invalid_grant"),
        ({"resource": f"{ORIGIN}/mcp"}, "invalid_target"),
        ({"resource": "https://elsewhere.example.com/"}, "invalid_target"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
        ({"grant_type": "client_credentials"}, "unsupported_grant_type"),
    ],
)
def test_a_code_is_refused_with_other_parameters(
    ide: OAuthClient, changed: dict[str, Any], code: str
) -> None:
    assert error(ide.exchange(ide.code(), **changed)) == code


def test_a_code_of_another_client_is_refused(ide: OAuthClient) -> None:
    assert error(ide.exchange(ide.code(), client_id=OAuthClient().id)) == "invalid_grant"


def test_a_code_expires_after_a_minute(ide: OAuthClient) -> None:
    code = ide.code()
    with time_machine.travel(timezone.now() + timedelta(seconds=61)):
        assert error(ide.exchange(code)) == "invalid_grant"


def test_a_code_that_is_used_twice_revokes_its_tokens(
    ide: OAuthClient, gateway_client: GatewayClient
) -> None:
    code = ide.code()
    tokens = ide.exchange(code).json()
    assert is_valid(gateway_client, tokens["access_token"])
    assert error(ide.exchange(code)) == "invalid_grant"
    assert not is_valid(gateway_client, tokens["access_token"])
    assert error(ide.refresh(tokens["refresh_token"])) == "invalid_grant"
    assert "code_reused" in AuditRow.objects.get(action="client_access_revoked").opened


def test_of_several_concurrent_exchanges_of_a_code_one_succeeds(ide: OAuthClient) -> None:
    code = ide.code()
    responses = run_concurrently(lambda: ide.exchange(code))
    assert sorted(response.status_code for response in responses)[:1] == [200]
    assert [response.status_code for response in responses].count(200) == 1


# -- refresh tokens ------------------------------------------------------------------------------


def test_a_refresh_token_that_is_used_twice_revokes_the_grant(
    ide: OAuthClient, gateway_client: GatewayClient
) -> None:
    first = ide.authorize()
    second = ide.refresh(first["refresh_token"]).json()
    assert error(ide.refresh(first["refresh_token"])) == "invalid_grant"
    assert not is_valid(gateway_client, second["access_token"])
    assert error(ide.refresh(second["refresh_token"])) == "invalid_grant"
    assert "refresh_reused" in AuditRow.objects.get(action="client_access_revoked").opened


def test_of_several_concurrent_refreshes_one_succeeds(ide: OAuthClient) -> None:
    first = ide.authorize()
    responses = run_concurrently(lambda: ide.refresh(first["refresh_token"]))
    assert [response.status_code for response in responses].count(200) <= 1


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"client_id": "nobody"}, "invalid_client"),
        ({"refresh_token": "bnr_x_y"}, "invalid_grant"),
        ({"refresh_token": "nonsense"}, "invalid_grant"),
        ({"resource": f"{ORIGIN}/mcp"}, "invalid_target"),
        ({"scope": "mcp:manage"}, "invalid_scope"),
    ],
)
def test_a_refresh_token_is_refused_with_other_parameters(
    ide: OAuthClient, changed: dict[str, Any], code: str
) -> None:
    first = ide.authorize()
    assert error(ide.refresh(first["refresh_token"], **changed)) == code
    assert ide.refresh(first["refresh_token"]).status_code == 200  # it is still valid


def test_access_and_refresh_tokens_arent_interchangeable(
    ide: OAuthClient, gateway_client: GatewayClient
) -> None:
    tokens = ide.authorize()
    assert error(ide.refresh(tokens["access_token"])) == "invalid_grant"
    assert not is_valid(gateway_client, tokens["refresh_token"])


# -- revocation ----------------------------------------------------------


def lower_role(ide: OAuthClient, acme: Organization, tokens: dict[str, Any]) -> None:
    member = Membership.objects.get(user__username="olga")
    update_member_role(factories.build_administrator(acme), member, Role.AUDITOR)


def deactivate(ide: OAuthClient, acme: Organization, tokens: dict[str, Any]) -> None:
    User.objects.filter(username="olga").update(is_active=False)


def halt_organization(ide: OAuthClient, acme: Organization, tokens: dict[str, Any]) -> None:
    Organization.objects.filter(pk=acme.pk).update(halted_at=timezone.now())


def revoke_refresh_token(ide: OAuthClient, acme: Organization, tokens: dict[str, Any]) -> None:
    assert ide.revoke(tokens["refresh_token"]).status_code == 200


def revoke_access_token(ide: OAuthClient, acme: Organization, tokens: dict[str, Any]) -> None:
    hint = {"token_type_hint": "refresh_token"}
    assert ide.revoke(tokens["access_token"], **hint).status_code == 200


@pytest.mark.parametrize(
    "ending", [lower_role, deactivate, halt_organization, revoke_refresh_token, revoke_access_token]
)
def test_the_next_call_after_a_revocation_is_refused(
    ending: Callable[..., None], ide: OAuthClient, acme: Organization, gateway_client: GatewayClient
) -> None:
    tokens = ide.authorize()
    assert is_valid(gateway_client, tokens["access_token"])
    ending(ide, acme, tokens)
    assert not is_valid(gateway_client, tokens["access_token"])
    assert error(ide.refresh(tokens["refresh_token"])) == "invalid_grant"


def test_a_client_works_again_after_the_kill_switch_is_disabled(
    ide: OAuthClient, acme: Organization, gateway_client: GatewayClient
) -> None:
    tokens = ide.authorize()
    halt_organization(ide, acme, tokens)
    assert error(ide.refresh(tokens["refresh_token"])) == "invalid_grant"
    Organization.objects.filter(pk=acme.pk).update(halted_at=None)
    assert is_valid(gateway_client, tokens["access_token"])
    assert ide.refresh(tokens["refresh_token"]).status_code == 200


def test_a_client_cant_revoke_the_token_of_another_client(
    ide: OAuthClient, gateway_client: GatewayClient
) -> None:
    tokens = ide.authorize()
    assert OAuthClient().revoke(tokens["refresh_token"]).status_code == 200
    assert is_valid(gateway_client, tokens["access_token"])


def test_a_token_is_valid_only_for_its_endpoint(
    ide: OAuthClient, acme: Organization, gateway_client: GatewayClient
) -> None:
    factories.create_agent(acme, "other")
    text = ide.authorize()["access_token"]
    assert is_valid(gateway_client, text)
    for path in ("/mcp", "/mcp/agents/other", "/mcp/servers/workshop"):
        reply = gateway_client.modern(path, "tools/list", token=text)
        assert (reply.status, reply.message["code"]) == (401, "bad_token")


def test_rest_refuses_oauth_tokens(ide: OAuthClient) -> None:
    text = ide.authorize()["access_token"]
    response = ide.client.get("/api/agents", headers={"Authorization": f"Bearer {text}"})
    assert response.status_code == 401


def test_a_consent_cant_grant_agents_of_another_organization(olga: User, helper: Agent) -> None:
    factories.create_agent(factories.create_organization("globex"), "secret")
    oauth_client = OAuthClient(olga)
    assert oauth_client.open_consent(resource=f"{ORIGIN}/mcp/agents/secret").status_code == 400
    other_organization = factories.create_organization("initech")
    stranger = OAuthClient(
        User.objects.get(pk=factories.create_member(other_organization, Role.OWNER).id)
    )
    assert stranger.open_consent().status_code == 400


def test_a_person_without_permission_cant_authorize_a_client(
    acme: Organization, workshop: Server
) -> None:
    member = OAuthClient(User.objects.get(pk=factories.create_member(acme, Role.MEMBER).id))
    resource = f"{ORIGIN}/mcp/servers/{workshop.slug}"
    assert member.open_consent(resource=resource).status_code == 400
    assert member.open_consent().status_code == 400  # no access to the agent


# -- rows ------------------------------------------------------------------------------------------


def test_no_row_or_log_has_a_token_in_plain_text(
    ide: OAuthClient, caplog: pytest.LogCaptureFixture, workshop: Server
) -> None:
    caplog.set_level("DEBUG")
    code = ide.code()
    first = ide.exchange(code).json()
    second = ide.refresh(first["refresh_token"]).json()
    texts = [
        code,
        *(tokens[n] for tokens in (first, second) for n in ("access_token", "refresh_token")),
    ]
    rows = json.dumps(
        [
            list(model.objects.values())
            for model in (AccessToken, RefreshToken, Grant, Token, AuditRow, Application)
        ],
        default=str,
    )
    for text in texts:
        assert text not in rows
        _, _, secret = text.split("_", 2)
        assert secret not in rows


def run_concurrently(action: Callable[[], Any]) -> list[Any]:
    """Run a function in four threads at the same time."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    from django.db import connection

    ready = Barrier(4)

    def run(_: int) -> Any:
        ready.wait(10)
        try:
            return action()
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(run, range(4)))
