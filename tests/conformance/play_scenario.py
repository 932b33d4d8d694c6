"""Runs one scenario: over plain connections, or as people who use the server.

A scenario of OAuth or skills uses the product's own interfaces: the server is registered,
discovered and approved, its tools are called through the gateway, and when a login is required, the
owner signs in on the pages of `/oauth/`. The suite's authorization page agrees immediately.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
from django.conf import settings
from django.test import Client

from agents.calls.pipeline import CallRequest, make_call
from agents.calls.types import Method
from bonobot.accounts.models import User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.discovery import run_discovery
from mcp_servers.models import Definition, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.conformance.use_server import use

LOGINS = 3  # attempts
HOST = "127.0.0.1"
SKILL_SCENARIOS = "sep-2640"
CREDENTIAL_FIELDS = ("client_id", "client_secret", "issuer")


def play(url: str, scenario: str, context: Mapping[str, Any]) -> str:
    """Run a scenario against the server at `url`; return the error, empty if there is none."""
    try:
        if scenario.startswith(("auth/", SKILL_SCENARIOS)):
            _run_as_people(url, scenario, context)
        else:
            get_runtime().call(use, url, scenario, context)
    except Problem as problem:
        return f"{problem.code}: {problem} {problem.remedy}"
    return ""


def _run_as_people(url: str, scenario: str, context: Mapping[str, Any]) -> None:
    organization = factories.create_organization(f"conformance-{uuid4().hex[:12]}")
    administrator = factories.build_administrator(organization)
    owner = factories.create_member(organization, Role.OWNER)
    server = create_server(
        administrator,
        ServerSpec(
            name="conformance",
            transport_type="http",
            endpoint_config={"url": url},
            auth_config=_build_auth_config(scenario, context, organization.pk),
            allow_private=True,
        ),
    )
    browser = Client(SERVER_NAME=HOST)
    browser.force_login(User.objects.get(pk=owner.id))
    try:
        for _ in range(LOGINS):
            try:
                return _use(administrator, owner, server, scenario)
            except Problem as problem:
                if problem.code != "needs_reauth" or not scenario_has_logins(scenario):
                    raise
            _sign_in(browser, server)
        _use(administrator, owner, server, scenario)
    finally:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


def scenario_has_logins(scenario: str) -> bool:
    """Return whether a person signs in, which credentials of Bonobot itself don't need."""
    return "client-credentials" not in scenario and "wif" not in scenario


def _build_auth_config(
    scenario: str, context: Mapping[str, Any], organization_id: UUID
) -> dict[str, Any]:
    if scenario.startswith(SKILL_SCENARIOS):
        return {"type": "none"}
    credentials = {name: context[name] for name in CREDENTIAL_FIELDS if name in context}
    if scenario_has_logins(scenario):
        return {"type": "oauth2", "grant": "authorization_code", **credentials}
    if token := context.get("valid_jwt"):
        folder = Path(settings.BONOBOT_WORKLOAD_TOKENS, str(organization_id))
        folder.mkdir(parents=True)
        folder.joinpath("platform").write_text(token)
        return {"type": "oauth2", "grant": "jwt_bearer", "workload_token": "platform"}
    if key := context.get("private_key_pem"):
        credentials["private_key"] = key
    return {"type": "oauth2", **credentials}


def _use(administrator: Principal, owner: Principal, server: Server, scenario: str) -> None:
    """Discover and approve the server, call its tools and read its skills' files."""
    get_runtime().call(run_discovery, server.pk, actor=administrator.actor)
    approve_definitions(administrator, server)
    definitions = Definition.objects.filter(server=server)
    for tool in definitions.tools():
        _call(owner, server, "tools/call", tool.name)
    for skill in definitions.filter(kind="skill") if "prefetch" not in scenario else ():
        for file in skill.payload["resources"]:
            _call(owner, server, "resources/read", file["uri"])


def _call(owner: Principal, server: Server, method: Method, name: str) -> None:
    request = CallRequest(
        principal=owner,
        method=method,
        tool=name,
        arguments={},
        via="rest",
        holder=f"server:{server.pk}:{owner.id}",
        server_id=server.pk,
    )
    outcome = get_runtime().call(make_call, request)
    if outcome.code:
        raise Problem(outcome.text, code=outcome.code)


def _sign_in(browser: Client, server: Server) -> None:
    """Press the button and follow the authorization server's redirects."""
    redirect = _check_status(browser.post(f"/oauth/start/{server.pk}"), 303)
    callback_url = httpx.get(redirect["Location"], follow_redirects=False).headers["location"]
    _check_status(browser.get(callback_url), 200, 302)


def _check_status(page: Any, *expected: int) -> Any:
    if page.status_code in expected:
        return page
    raise Problem(page.content.decode(), code=f"page_{page.status_code}")
