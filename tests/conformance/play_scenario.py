"""Playing one scenario: with the connections alone, or as people who sign in to the server.

A scenario of OAuth is played through the product's surfaces: the server is registered, discovered
and approved, its tools are called through the door, and wherever a login is asked for, the owner
signs in by the pages of `/oauth/`. The suite's authorization page agrees at once.
"""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import httpx
from django.test import Client

from agents.calls.pipeline import CallRequest, make_call
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

LOGINS = 3  # as many as a patient person would try
HERE = "127.0.0.1"
GIVEN = ("client_id", "client_secret", "issuer")


def play(url: str, scenario: str, context: Mapping[str, Any]) -> str:
    """Play a scenario against the server at `url`; returns what went wrong, blank if nothing."""
    try:
        if scenario.startswith("auth/"):
            _as_people(url, scenario, context)
        else:
            get_runtime().call(use, url, scenario, context)
    except Problem as problem:
        return f"{problem.code}: {problem} {problem.remedy}"
    return ""


def _as_people(url: str, scenario: str, context: Mapping[str, Any]) -> None:
    where = factories.create_organization(f"conformance-{uuid4().hex[:12]}")
    boss = factories.build_administrator(where)
    owner = factories.create_member(where, Role.OWNER)
    server = create_server(
        boss,
        ServerSpec(
            name="conformance",
            transport_type="http",
            endpoint_config={"url": url},
            auth_config=_sign_in(scenario, context),
            allow_private=True,
        ),
    )
    browser = Client(SERVER_NAME=HERE)
    browser.force_login(User.objects.get(pk=owner.id))
    try:
        for _ in range(LOGINS):
            try:
                return _use(boss, owner, server)
            except Problem as problem:
                if problem.code != "needs_reauth" or not scenario_has_logins(scenario):
                    raise
            _log_in(browser, server)
        _use(boss, owner, server)
    finally:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


def scenario_has_logins(scenario: str) -> bool:
    """Tell whether a person signs in: with client credentials nobody does."""
    return "client-credentials" not in scenario


def _sign_in(scenario: str, context: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: context[name] for name in GIVEN if name in context}
    if scenario_has_logins(scenario):
        return {"type": "oauth2", "grant": "authorization_code", **known}
    if key := context.get("private_key_pem"):
        known["private_key"] = key
    return {"type": "oauth2", **known}


def _use(boss: Principal, owner: Principal, server: Server) -> None:
    """Discover and approve the server, and call its tools through the door."""
    get_runtime().call(run_discovery, server.pk, actor=boss.actor)
    approve_definitions(boss, server)
    for tool in Definition.objects.tools().filter(server=server):
        request = CallRequest(
            principal=owner,
            tool=tool.name,
            arguments={},
            via="rest",
            holder=f"server:{server.pk}:{owner.id}",
            server_id=server.pk,
        )
        outcome = get_runtime().call(make_call, request)
        if outcome.code:
            raise Problem(outcome.text, code=outcome.code)


def _log_in(browser: Client, server: Server) -> None:
    """Press the button, follow the authorization server's redirect, and come back."""
    away = _done(browser.post(f"/oauth/start/{server.pk}"), 303)
    back = httpx.get(away["Location"], follow_redirects=False).headers["location"]
    _done(browser.get(back), 200, 302)


def _done(page: Any, *expected: int) -> Any:
    if page.status_code in expected:
        return page
    raise Problem(page.content.decode(), code=f"page_{page.status_code}")
