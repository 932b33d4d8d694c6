"""Tokens of external issuers at the gateway: their access and permissions."""

import pytest
from django.conf import settings

from agents.models import Agent
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.external_issuers import services as external_issuers
from bonobot.accounts.models import Issuer, Organization
from bonobot.accounts.tokens import cache as token_cache
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server
from tests import factories
from tests.agents.gateway.conftest import GatewayClient
from tests.agents.gateway.external_tokens import (
    AGENT,
    RESOURCE,
    assert_refused,
    can_list_tools,
    clock,
    list_tools,
    login,
    trusted,
)
from tests.agents.gateway.test_mcp_tasks import DECLARED, send_task_request
from tests.agents.gateway.upstream_server import Upstream, attach_upstream
from tests.servers.token_issuer import TokenIssuer

__all__ = ["clock", "login", "trusted"]

pytestmark = pytest.mark.django_db(transaction=True)

ECHO = {"name": "mcp_workshop_echo", "arguments": {"text": "hello"}}


def test_a_token_of_an_issuer_calls_a_governed_tool(
    acme: Organization,
    helper: Agent,
    workshop: Server,
    gateway_client: GatewayClient,
    login: TokenIssuer,
) -> None:
    factories.create_issuer(
        acme,
        login.url,
        role="member",
        label_claim="email",
        allow_private=True,
        agent_ids=[helper.pk],
    )
    text = login.token([RESOURCE, "else"], email="alice@example.com")
    assert gateway_client.modern(AGENT, "tools/call", ECHO, token=text).result["isError"] is False
    rows = AuditRow.objects.filter(actor_label__endswith="(Login)").order_by("seq")
    assert [row.actor_label for row in rows] == ["alice@example.com (Login)"]
    # Another token of the same subject is the same actor.
    gateway_client.modern(AGENT, "tools/call", ECHO, token=login.token(RESOURCE, jti="2"))
    gateway_client.modern(AGENT, "tools/call", ECHO, token=login.token(RESOURCE, sub="bob"))
    ids = list(rows.values_list("actor_id", flat=True))
    assert (len(ids), len(set(ids))) == (3, 2)
    assert login.reads == 1


def test_tokens_of_each_key_type_are_accepted(
    helper: Agent, gateway_client: GatewayClient, login: TokenIssuer, trusted: Issuer
) -> None:
    kinds = ("PS256", "ES256", "EdDSA")
    for kind in kinds:
        login.add_key(kind, kind)
    texts = [login.token(RESOURCE, kid=kind, algorithm=kind) for kind in kinds]
    assert [list_tools(gateway_client, text).status for text in texts] == [200, 200, 200]


def test_scopes_are_limited_by_the_token_and_the_issuer(
    helper: Agent, gateway_client: GatewayClient, login: TokenIssuer, trusted: Issuer
) -> None:
    reply = list_tools(gateway_client, login.token(RESOURCE, scope="mcp:agents openid api"))
    assert reply.status == 403
    assert 'error="insufficient_scope", scope="mcp:tools"' in reply.headers["www-authenticate"]
    token = login.token(RESOURCE)
    assert list_tools(gateway_client, token).status == 200
    external_issuers.update_issuer(
        factories.build_administrator(helper.organization), trusted, scopes=["mcp:agents"]
    )
    assert not can_list_tools(gateway_client, token)
    assert list_tools(gateway_client, token).status == 403
    fields = {"scope_claim": "", "scopes": ["mcp:tools"]}
    external_issuers.update_issuer(
        factories.build_administrator(helper.organization), trusted, **fields
    )
    assert list_tools(gateway_client, login.token(RESOURCE, scope=None)).status == 200


def test_a_claim_sets_the_role(
    acme: Organization, helper: Agent, gateway_client: GatewayClient, login: TokenIssuer
) -> None:
    factories.create_issuer(
        acme,
        login.url,
        role="",
        role_claim="realm.roles",
        roles={"ops": "operator", "readers": "auditor"},
        allow_private=True,
    )
    assert (
        list_tools(
            gateway_client, login.token(RESOURCE, realm={"roles": ["x", "readers", "ops"]})
        ).status
        == 200
    )
    # Auditors can't call tools, so the endpoint doesn't exist for them.
    assert (
        list_tools(gateway_client, login.token(RESOURCE, realm={"roles": ["readers"]})).status
        == 404
    )
    assert_refused(gateway_client, login.token(RESOURCE, realm={"roles": ["x"]}))
    assert_refused(gateway_client, login.token(RESOURCE, realm="ops"))


def test_an_issuer_limited_to_agents_reaches_no_others(
    acme: Organization, helper: Agent, gateway_client: GatewayClient, login: TokenIssuer
) -> None:
    factories.create_agent(acme, "other")
    factories.create_issuer(acme, login.url, agent_ids=[helper.pk], allow_private=True)
    other_path = "/mcp/agents/other"
    assert list_tools(gateway_client, login.token(RESOURCE)).status == 200
    assert (
        list_tools(
            gateway_client, login.token(f"{settings.BONOBOT_URL}{other_path}"), other_path
        ).status
        == 404
    )


def test_a_change_of_the_issuer_applies_to_the_next_call(
    acme: Organization,
    helper: Agent,
    workshop: Server,
    gateway_client: GatewayClient,
    login: TokenIssuer,
    trusted: Issuer,
) -> None:
    administrator, text = factories.build_administrator(acme), login.token(RESOURCE)
    call = lambda: gateway_client.modern(AGENT, "tools/call", ECHO, token=text)  # noqa: E731
    assert call().result["isError"] is False
    external_issuers.update_issuer(administrator, trusted, enabled=False)
    assert call().code == "bad_token"
    assert_refused(gateway_client, text)
    external_issuers.update_issuer(administrator, trusted, enabled=True)
    assert call().result["isError"] is False
    external_issuers.delete_issuer(administrator, trusted)
    assert call().code == "bad_token"
    assert_refused(gateway_client, text)


def test_limits_apply_per_subject(
    acme: Organization,
    helper: Agent,
    workshop: Server,
    gateway_client: GatewayClient,
    login: TokenIssuer,
) -> None:
    factories.create_issuer(
        acme, login.url, role="operator", calls_per_minute=1, allow_private=True
    )
    call = lambda subject, jti: gateway_client.modern(  # noqa: E731
        AGENT, "tools/call", ECHO, token=login.token(RESOURCE, sub=subject, jti=jti)
    )
    assert call("alice", "1").result["isError"] is False
    codes = {call("alice", str(n)).code for n in range(2, 5)}
    assert codes == {"rate_limited"}
    assert call("bob", "1").result["isError"] is False


def test_two_subjects_of_an_issuer_are_isolated(
    acme: Organization,
    helper: Agent,
    workshop: Server,
    gateway_client: GatewayClient,
    login: TokenIssuer,
    trusted: Issuer,
) -> None:
    alice, bob = login.token(RESOURCE), login.token(RESOURCE, sub="bob")
    session = gateway_client.handshake(AGENT, token=alice)
    assert "result" in session.ask("tools/list").message
    assert session.ask("tools/list", token=bob).status == 404
    # A newer token of the same subject can continue the session.
    assert "result" in session.ask("tools/list", token=login.token(RESOURCE, jti="2")).message
    set_policy(
        factories.build_administrator(acme), helper, PolicySpec("all", ask=("mcp_workshop_echo",))
    )
    task = gateway_client.modern(
        AGENT, "tools/call", ECHO, token=alice, capabilities=DECLARED
    ).result
    messages = [
        send_task_request(gateway_client, AGENT, "tasks/get", task["taskId"], token=token).message
        for token in (alice, bob)
    ]
    assert ["result" in token for token in messages] == [True, False]


def test_a_token_is_never_forwarded(
    acme: Organization,
    helper: Agent,
    gateway_client: GatewayClient,
    login: TokenIssuer,
    trusted: Issuer,
) -> None:
    text = login.token(RESOURCE)
    with Upstream("shop").listening() as upstream:
        attach_upstream(upstream, acme, helper)
        call = {"name": "mcp_shop_echo", "arguments": {}}
        assert "result" in gateway_client.modern(AGENT, "tools/call", call, token=text).message
        sent = repr([(request.headers, request.message) for request in upstream.http.asked])
    assert "tools/call" in sent
    assert not any(part in sent for part in text.split("."))


def test_a_token_cant_approve_its_own_calls(
    acme: Organization,
    helper: Agent,
    workshop: Server,
    gateway_client: GatewayClient,
    login: TokenIssuer,
) -> None:
    factories.create_issuer(acme, login.url, role="owner", allow_private=True)
    set_policy(
        factories.build_administrator(acme), helper, PolicySpec("all", ask=("mcp_workshop_echo",))
    )
    reply = gateway_client.modern(AGENT, "tools/call", ECHO, token=login.token(RESOURCE))
    assert reply.code == "approval_required"
    names = {
        tool["name"] for tool in list_tools(gateway_client, login.token(RESOURCE)).result["tools"]
    }
    assert not any("approv" in name for name in names)


def test_the_metadata_lists_only_announced_issuers(
    acme: Organization, gateway_client: GatewayClient, login: TokenIssuer, trusted: Issuer
) -> None:
    factories.create_issuer(acme, "https://hidden.example.com", "Hidden", announced=False)
    factories.create_issuer(acme, "https://off.example.com", "Off", enabled=False)
    metadata = gateway_client.send("GET", f"/.well-known/oauth-protected-resource{AGENT}").message
    assert metadata["authorization_servers"] == [
        settings.BONOBOT_URL,
        login.url,
    ]  # Bonobot's own comes first
    assert metadata["resource"] == RESOURCE


def test_a_custom_audience_is_valid_at_each_endpoint(
    acme: Organization, helper: Agent, gateway_client: GatewayClient, login: TokenIssuer
) -> None:
    factories.create_issuer(
        acme, login.url, role="operator", audience="api://bonobot", allow_private=True
    )
    text = login.token("api://bonobot")
    assert (
        list_tools(gateway_client, text).status,
        list_tools(gateway_client, text, "/mcp").status,
    ) == (200, 200)
    assert_refused(gateway_client, login.token(RESOURCE))


def test_the_token_is_stored_nowhere(
    acme: Organization,
    helper: Agent,
    gateway_client: GatewayClient,
    login: TokenIssuer,
    trusted: Issuer,
) -> None:
    text = login.token(RESOURCE)
    assert list_tools(gateway_client, text).status == 200
    assert text not in repr(vars(token_cache.get_token_cache()))
    rows = AuditRow.objects.values_list("opened", "closed", "resource_name")
    assert text.rpartition(".")[2] not in repr(list(rows))
