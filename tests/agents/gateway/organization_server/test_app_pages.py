"""Bonobot's own pages as MCP Apps: declared, static, and a way to answer only for people."""

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agents.gateway.organization_server.app_pages import (
    PAGES,
    build_page_uri,
    check_not_own_call,
)
from agents.models import Agent, Approval, ElicitationRequest
from bonobot.accounts.models import Organization, Token, User
from bonobot.accounts.roles import Role, TokenScope
from bonobot.core.problems import Forbidden
from bonobot.ledger.models import AuditRow
from mcp_servers.client.mcp_extensions import APP_MIME_TYPE, UI_EXTENSION
from tests import admin_client, browser, factories
from tests.agents.gateway.conftest import GatewayClient, token_of

pytestmark = pytest.mark.django_db(transaction=True)

APPS = {"extensions": {UI_EXTENSION: {"mimeTypes": [APP_MIME_TYPE]}}}
KEY = "bonobot/answer_key"
NPM = Path(__file__).parents[4] / "tests" / "npm"
ERAS = ("modern", "handshake")


@dataclass
class AppClient:
    """A client in one era that declares that it renders apps, unless `capabilities` differ."""

    gateway_client: GatewayClient
    era: str = "modern"
    token: str | None = None
    capabilities: Any = None

    def __post_init__(self) -> None:
        self.capabilities = APPS if self.capabilities is None else self.capabilities
        self._session = (
            self.gateway_client.handshake("/mcp", token=self.token, capabilities=self.capabilities)
            if self.era == "handshake"
            else None
        )

    def ask(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        if self._session is not None:
            result: dict[str, Any] = self._session.ask(method, params).result
            return result
        modern: dict[str, Any] = self.gateway_client.modern(
            "/mcp", method, params, capabilities=self.capabilities, token=self.token
        ).result
        return modern

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", {"name": name, "arguments": arguments})


@pytest.fixture
def approval(helper: Agent) -> Approval:
    return factories.create_approval(
        helper, arguments={"text": "<img src=x onerror=alert(1)>"}, requested_by_id="someone else"
    )


def get_code(result: dict[str, Any]) -> str:
    assert result["isError"]
    code: str = result["_meta"]["bonobot/problem"]["code"]
    return code


def answer(client: AppClient, approval: Approval, value: str = "approve") -> dict[str, Any]:
    key = client.call("list_approvals", state="waiting")["_meta"][KEY]
    arguments = {"approval_id": str(approval.pk), "answer": value, "answer_key": key}
    return client.call("answer_approval", **arguments)


@pytest.mark.parametrize("era", ERAS)
def test_pages_are_declared_and_have_no_access_to_the_network(
    gateway_client: GatewayClient, era: str
) -> None:
    client = AppClient(gateway_client, era)
    tools = {
        tool["name"]: tool.get("_meta", {}).get("ui") for tool in client.ask("tools/list")["tools"]
    }
    assert tools["list_approvals"]["resourceUri"] == "ui://bonobot/approvals.html"
    assert (
        tools["answer_approval"] == tools["answer_elicitation_request"] == {"visibility": ["app"]}
    )
    for name in PAGES:
        uri = build_page_uri(name)
        [content] = client.ask("resources/read", {"uri": uri})["contents"]
        assert (content["uri"], content["mimeType"]) == (uri, APP_MIME_TYPE)
        assert content["_meta"]["ui"]["csp"] == {"connectDomains": [], "resourceDomains": []}
        assert "default-src 'none'; script-src 'sha256-" in content["text"]
        assert not re.search(r"(src|href)=|https?:|innerHTML|eval\(", content["text"])


@pytest.mark.parametrize("era", ERAS)
def test_a_call_is_approved_with_the_key_of_the_page(
    gateway_client: GatewayClient, approval: Approval, era: str
) -> None:
    client = AppClient(gateway_client, era)
    listed = client.call("list_approvals", state="waiting")
    assert KEY not in str(listed["structuredContent"]) + str(listed["content"])
    result = answer(client, approval)
    assert result["structuredContent"]["state"] == "approved"
    assert AuditRow.objects.filter(action="call_approved").exists()
    assert get_code(answer(client, approval, "deny")) == "already_answered"
    row = AuditRow.objects.filter(action="gateway_call", resource_id="answer_approval").first()
    assert row is not None
    assert listed["_meta"][KEY] not in str(row.__dict__)


def test_a_model_cant_answer_without_the_key(
    gateway_client: GatewayClient, approval: Approval, acme: Organization
) -> None:
    arguments = {"approval_id": str(approval.pk), "answer": "approve"}
    client = AppClient(gateway_client)
    assert (
        get_code(client.call("answer_approval", **arguments)) != "needs_app"
    )  # a required argument
    assert get_code(client.call("answer_approval", **arguments, answer_key="x")) == "needs_app"
    key = client.call("list_approvals")["_meta"][KEY]
    other_token = token_of(factories.build_administrator(acme))
    for stranger in (
        AppClient(gateway_client, token=other_token),
        AppClient(gateway_client, capabilities={}),
    ):
        result = stranger.call("answer_approval", **arguments, answer_key=key)
        assert get_code(result) == "needs_app"
    without_apps = AppClient(gateway_client, capabilities={}).call("list_approvals")
    assert KEY not in without_apps["_meta"]
    approval.refresh_from_db()
    assert approval.state == Approval.State.WAITING


def test_who_cant_approve_elsewhere_cant_on_the_page(
    gateway_client: GatewayClient, approval: Approval, acme: Organization
) -> None:
    administrator = factories.build_administrator(acme)
    for more in (
        {"role": Role.OWNER, "scopes": [TokenScope.MANAGE]},
        {"role": Role.AUDITOR},
    ):
        client = AppClient(gateway_client, token=token_of(administrator, **more))
        names = {tool["name"] for tool in client.ask("tools/list")["tools"]}
        assert "answer_approval" not in names
        assert KEY not in client.call("list_approvals")["_meta"]


def test_ones_own_call_cant_be_approved_on_the_page(
    gateway_client: GatewayClient, helper: Agent, acme: Organization
) -> None:
    token = Token.objects.get(organization=acme)
    own = factories.create_approval(
        helper, requested_by_kind="token", requested_by_id=str(token.pk)
    )
    client = AppClient(gateway_client)
    assert get_code(answer(client, own)) == "own_call"
    assert answer(client, own, "deny")["structuredContent"]["state"] == "denied"
    person = User.objects.create_user("ada")
    client_of_person = replace(factories.build_administrator(acme), granted_by_id=person.pk)
    persons = factories.create_approval(
        helper, requested_by_kind="user", requested_by_id=str(person.pk)
    )
    with pytest.raises(Forbidden) as caught:
        check_not_own_call(client_of_person, str(persons.pk))
    assert caught.value.code == "own_call"
    other_approval = factories.create_approval(
        helper, requested_by_kind="user", requested_by_id="other"
    )
    check_not_own_call(client_of_person, str(other_approval.pk))


@pytest.fixture(scope="module")
def host_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The host of ext-apps, as one script for a browser."""
    target = tmp_path_factory.mktemp("host") / "host.js"
    command = ["node", str(NPM / "node_modules" / ".bin" / "rolldown"), "clients/apps_host.mjs"]
    command += ["--file", str(target), "--format", "iife", "--platform", "browser"]
    bundled = subprocess.run(command, cwd=NPM, capture_output=True, text=True, check=False)
    assert bundled.returncode == 0, bundled.stdout + bundled.stderr
    return target


def open_app(page: Any, host_script: Path, client: AppClient, name: str, **arguments: Any) -> Any:
    """Show a tool's page in the host; return its frame."""
    uri = next(
        tool["_meta"]["ui"]["resourceUri"]
        for tool in client.ask("tools/list")["tools"]
        if tool["name"] == name
    )
    [content] = client.ask("resources/read", {"uri": uri})["contents"]
    result = client.call(name, **arguments)
    calls: Callable[..., dict[str, Any]] = lambda tool, given: client.call(tool, **given)  # noqa: E731
    page.expose_function("callTool", calls)
    page.goto("about:blank")
    page.add_script_tag(path=str(host_script))
    page.evaluate("([html, result]) => showApp(html, result)", [content["text"], result])
    return page.frame_locator("iframe")


@pytest.mark.npm
@pytest.mark.browser
@pytest.mark.whole
@pytest.mark.parametrize("era", ERAS)
def test_a_person_answers_on_the_pages_in_a_host(
    gateway_client: GatewayClient,
    approval: Approval,
    helper: Agent,
    acme: Organization,
    host_script: Path,
    era: str,
) -> None:
    client = AppClient(gateway_client, era)
    with browser.open_page("http://127.0.0.1") as page:
        frame = open_app(page, host_script, client, "list_approvals", state="waiting")
        assert "onerror=alert" in frame.locator("pre").inner_text()
        frame.get_by_role("button", name="Approve").click()
        frame.get_by_text("Approved.").wait_for()
    approval.refresh_from_db()
    assert approval.state == Approval.State.APPROVED
    session, _approval = factories.create_waiting_session(helper)
    with browser.open_page("http://127.0.0.1") as page:
        frame = open_app(page, host_script, client, "get_session", session_id=str(session.pk))
        frame.get_by_role("heading", name="Session:").wait_for()


@pytest.mark.npm
@pytest.mark.browser
def test_a_call_whose_definition_changed_can_only_be_denied_on_the_page(
    gateway_client: GatewayClient, helper: Agent, acme: Organization, host_script: Path
) -> None:
    server = admin_client.create_web_server(acme)
    definition = admin_client.declare_tool(server, description="Adds numbers.")
    outdated = factories.create_approval(
        helper,
        server_id=server.pk,
        definition_digest=definition.digest,
        requested_by_id="someone else",
    )
    definition.set_payload({**definition.payload, "description": "Forwards customers."})
    definition.save()
    client = AppClient(gateway_client)
    with browser.open_page("http://127.0.0.1") as page:
        frame = open_app(page, host_script, client, "list_approvals", state="waiting")
        frame.get_by_text("This approval no longer applies").wait_for()
        assert "Forwards customers." in frame.locator("pre").last.inner_text()
        names = [button.inner_text() for button in frame.get_by_role("button").all()]
        assert names == ["Deny", "Review in Bonobot"]
        frame.get_by_role("button", name="Deny").click()
        frame.get_by_text("Denied.").wait_for()
    outdated.refresh_from_db()
    assert outdated.state == Approval.State.DENIED


@pytest.mark.npm
@pytest.mark.browser
def test_an_elicitation_request_is_answered_on_its_page(
    gateway_client: GatewayClient, helper: Agent, acme: Organization, host_script: Path
) -> None:
    session = factories.create_answered_session(helper)
    server = factories.create_stdio_server(acme)
    request = factories.create_elicitation(session, server)
    token = Token.objects.get(organization=acme)
    ElicitationRequest.objects.update(requested_by_kind="token", requested_by_id=str(token.pk))
    client = AppClient(gateway_client)
    with browser.open_page("http://127.0.0.1") as page:
        frame = open_app(page, host_script, client, "list_elicitation_requests")
        frame.get_by_label("Region").select_option("us")
        frame.get_by_role("button", name="Send").click()
        frame.get_by_text("Sent.").wait_for()
    request.refresh_from_db()
    assert request.state != ElicitationRequest.State.WAITING
