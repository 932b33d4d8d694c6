"""Whoever comes with what isn't theirs, too late, twice or for another place gets nothing."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone
from oauth2_provider.models import AccessToken, Application, Grant, RefreshToken

from agents.models import Agent
from bonobot.accounts.models import Membership, Organization, Token, User
from bonobot.accounts.roles import Role
from bonobot.accounts.services import update_member_role
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server
from tests import factories
from tests.agents.gateway.conftest import Wire
from tests.bonobot.oauth_server.oauth_client import AGENT, ALLOW, HERE, VERIFIER, Program, error

pytestmark = pytest.mark.django_db(transaction=True)

ORIGIN = HERE.removesuffix(AGENT)


def opens(wire: Wire, text: str, path: str = AGENT) -> bool:
    return wire.modern(path, "tools/list", token=text).status == 200


def test_an_authorized_client_calls_the_endpoint_and_refreshes_its_token(
    ide: Program, wire: Wire, workshop: Server
) -> None:
    first = ide.let_in()
    assert (first["token_type"], first["expires_in"], first["scope"]) == (
        "Bearer",
        3600,
        "mcp:tools",
    )
    assert first["access_token"].startswith("bno_")
    assert opens(wire, first["access_token"])
    echo = {"name": "mcp_workshop_echo", "arguments": {"text": "hello"}}
    called = wire.modern(AGENT, "tools/call", echo, token=first["access_token"])
    assert called.result["isError"] is False
    row = AuditRow.objects.filter(actor_label="IDE (olga)").order_by("seq").last()
    assert row is not None
    second = ide.refresh(first["refresh_token"]).json()
    assert not opens(wire, first["access_token"])
    assert opens(wire, second["access_token"])


# -- what a person is never asked, and where nobody is sent ---------------------------------------


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
def test_nobody_is_redirected_to_an_unregistered_uri(ide: Program, changed: dict[str, Any]) -> None:
    for response in (ide.asked(**changed), ide.answered(**changed)):
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
        ({"resource": [HERE, f"{ORIGIN}/mcp"]}, "invalid_target"),
        ({"scope": "mcp:tools api"}, "invalid_scope"),
        ({"scope": "everything"}, "invalid_scope"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": None}, "invalid_request"),
        ({"resource": f"{ORIGIN}/mcp/agents/nobody"}, "access_denied"),
    ],
)
def test_errors_are_sent_to_the_client_only_through_the_browser(
    ide: Program, changed: dict[str, Any], code: str
) -> None:
    page = ide.asked(**changed)
    assert page.status_code == 400
    assert "Location" not in page
    assert b"Return to client" in page.content
    back = ide.sent_back({"answer": "deny"}, **changed)
    assert (back["error"], back["state"], back["iss"]) == (code, ide.state, ORIGIN)
    assert not Token.objects.exists()


def test_a_person_who_isnt_signed_in_is_asked_to_sign_in(helper: Agent) -> None:
    program = Program()
    for response in (program.asked(), program.answered(), program.asked(redirect_uri="https://x")):
        assert response.status_code == 302
        assert response["Location"].startswith("/admin/login/?next=/oauth/authorize")


def test_a_denied_consent_returns_access_denied(ide: Program) -> None:
    back = ide.sent_back({"answer": "deny"})
    assert (back["error"], back["state"], back["iss"]) == ("access_denied", ide.state, ORIGIN)
    assert not Token.objects.exists()


def test_the_consent_page_cant_be_framed_and_posts_only_to_itself(ide: Program) -> None:
    page = ide.asked()
    assert page.status_code == 200
    assert page["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in page["Content-Security-Policy"]
    assert "form-action 'self' http: https:" in page["Content-Security-Policy"]
    assert "no-store" in page["Cache-Control"]


def test_another_site_cant_submit_the_consent(ide: Program, olga: User) -> None:
    from django.test import Client

    browser = Client(enforce_csrf_checks=True)
    browser.force_login(olga)
    assert browser.post(ide.address(), ALLOW).status_code == 403


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
    ide: Program, answer: dict[str, Any]
) -> None:
    assert ide.answered(answer).status_code == 400
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
    ide: Program, changed: dict[str, Any], code: str
) -> None:
    assert error(ide.exchange(ide.code(), **changed)) == code


def test_a_code_of_another_client_is_refused(ide: Program) -> None:
    assert error(ide.exchange(ide.code(), client_id=Program().id)) == "invalid_grant"


def test_a_code_expires_after_a_minute(ide: Program) -> None:
    code = ide.code()
    with time_machine.travel(timezone.now() + timedelta(seconds=61)):
        assert error(ide.exchange(code)) == "invalid_grant"


def test_a_code_that_is_used_twice_revokes_its_tokens(ide: Program, wire: Wire) -> None:
    code = ide.code()
    tokens = ide.exchange(code).json()
    assert opens(wire, tokens["access_token"])
    assert error(ide.exchange(code)) == "invalid_grant"
    assert not opens(wire, tokens["access_token"])
    assert error(ide.refresh(tokens["refresh_token"])) == "invalid_grant"
    assert "code_reused" in AuditRow.objects.get(action="grant_ended").opened


def test_of_several_concurrent_exchanges_of_a_code_one_succeeds(ide: Program) -> None:
    code = ide.code()
    found = at_once(lambda: ide.exchange(code))
    assert sorted(one.status_code for one in found)[:1] == [200]
    assert [one.status_code for one in found].count(200) == 1


# -- refresh tokens ------------------------------------------------------------------------------


def test_a_refresh_token_that_is_used_twice_revokes_the_grant(ide: Program, wire: Wire) -> None:
    first = ide.let_in()
    second = ide.refresh(first["refresh_token"]).json()
    assert error(ide.refresh(first["refresh_token"])) == "invalid_grant"
    assert not opens(wire, second["access_token"])
    assert error(ide.refresh(second["refresh_token"])) == "invalid_grant"
    assert "refresh_reused" in AuditRow.objects.get(action="grant_ended").opened


def test_of_several_concurrent_refreshes_one_succeeds(ide: Program) -> None:
    first = ide.let_in()
    found = at_once(lambda: ide.refresh(first["refresh_token"]))
    assert [one.status_code for one in found].count(200) <= 1


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
    ide: Program, changed: dict[str, Any], code: str
) -> None:
    first = ide.let_in()
    assert error(ide.refresh(first["refresh_token"], **changed)) == code
    assert ide.refresh(first["refresh_token"]).status_code == 200  # it wasn't used up


def test_access_and_refresh_tokens_arent_interchangeable(ide: Program, wire: Wire) -> None:
    tokens = ide.let_in()
    assert error(ide.refresh(tokens["access_token"])) == "invalid_grant"
    assert not opens(wire, tokens["refresh_token"])


# -- what ends a grant, or keeps it out ----------------------------------------------------------


def lower(ide: Program, acme: Organization, tokens: dict[str, Any]) -> None:
    member = Membership.objects.get(user__username="olga")
    update_member_role(factories.build_administrator(acme), member, Role.AUDITOR)


def switch_off(ide: Program, acme: Organization, tokens: dict[str, Any]) -> None:
    User.objects.filter(username="olga").update(is_active=False)


def halt(ide: Program, acme: Organization, tokens: dict[str, Any]) -> None:
    Organization.objects.filter(pk=acme.pk).update(halted_at=timezone.now())


def give_back(ide: Program, acme: Organization, tokens: dict[str, Any]) -> None:
    assert ide.revoke(tokens["refresh_token"]).status_code == 200


def give_back_access(ide: Program, acme: Organization, tokens: dict[str, Any]) -> None:
    hint = {"token_type_hint": "refresh_token"}
    assert ide.revoke(tokens["access_token"], **hint).status_code == 200


@pytest.mark.parametrize("ending", [lower, switch_off, halt, give_back, give_back_access])
def test_the_next_call_after_a_revocation_is_refused(
    ending: Callable[..., None], ide: Program, acme: Organization, wire: Wire
) -> None:
    tokens = ide.let_in()
    assert opens(wire, tokens["access_token"])
    ending(ide, acme, tokens)
    assert not opens(wire, tokens["access_token"])
    assert error(ide.refresh(tokens["refresh_token"])) == "invalid_grant"


def test_a_client_works_again_after_the_kill_switch_is_disabled(
    ide: Program, acme: Organization, wire: Wire
) -> None:
    tokens = ide.let_in()
    halt(ide, acme, tokens)
    assert error(ide.refresh(tokens["refresh_token"])) == "invalid_grant"
    Organization.objects.filter(pk=acme.pk).update(halted_at=None)
    assert opens(wire, tokens["access_token"])
    assert ide.refresh(tokens["refresh_token"]).status_code == 200


def test_a_client_cant_revoke_the_token_of_another_client(ide: Program, wire: Wire) -> None:
    tokens = ide.let_in()
    assert Program().revoke(tokens["refresh_token"]).status_code == 200
    assert opens(wire, tokens["access_token"])


def test_a_token_is_valid_only_for_its_endpoint(
    ide: Program, acme: Organization, wire: Wire
) -> None:
    factories.create_agent(acme, "other")
    text = ide.let_in()["access_token"]
    assert opens(wire, text)
    for path in ("/mcp", "/mcp/agents/other", "/mcp/servers/workshop"):
        reply = wire.modern(path, "tools/list", token=text)
        assert (reply.status, reply.message["code"]) == (401, "bad_token")


def test_rest_refuses_oauth_tokens(ide: Program) -> None:
    text = ide.let_in()["access_token"]
    response = ide.client.get("/api/agents", headers={"Authorization": f"Bearer {text}"})
    assert response.status_code == 401


def test_a_consent_cant_grant_agents_of_another_organization(olga: User, helper: Agent) -> None:
    factories.create_agent(factories.create_organization("globex"), "secret")
    program = Program(olga)
    assert program.asked(resource=f"{ORIGIN}/mcp/agents/secret").status_code == 400
    other = factories.create_organization("initech")
    stranger = Program(User.objects.get(pk=factories.create_member(other, Role.OWNER).id))
    assert stranger.asked().status_code == 400


def test_a_person_without_permission_cant_authorize_a_client(
    acme: Organization, workshop: Server
) -> None:
    member = Program(User.objects.get(pk=factories.create_member(acme, Role.MEMBER).id))
    there = f"{ORIGIN}/mcp/servers/{workshop.slug}"
    assert member.asked(resource=there).status_code == 400
    assert member.asked().status_code == 400  # the agent wasn't given to them


# -- rows ------------------------------------------------------------------------------------------


def test_no_row_or_log_has_a_token_in_plain_text(
    ide: Program, caplog: pytest.LogCaptureFixture, workshop: Server
) -> None:
    caplog.set_level("DEBUG")
    code = ide.code()
    first = ide.exchange(code).json()
    second = ide.refresh(first["refresh_token"]).json()
    texts = [code, *(one[n] for one in (first, second) for n in ("access_token", "refresh_token"))]
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


def at_once(do: Callable[[], Any]) -> list[Any]:
    """Do something in four threads at the same time."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    from django.db import connection

    ready = Barrier(4)

    def one(_: int) -> Any:
        ready.wait(10)
        try:
            return do()
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, range(4)))
