"""Concurrent saves with the same version: exactly one succeeds."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from agents.models import Agent
from agents.policies.services import load_policy_spec
from bonobot.accounts.roles import Role
from tests import admin_client, factories, rest
from tests.bonobot.test_admin_versions import Tab, rule_field

pytestmark = pytest.mark.django_db(transaction=True)

CLIENTS = 4


def run_concurrently(*saves: Callable[[], int]) -> list[int]:
    """Run each save in its own thread and connection; return the sorted statuses."""
    start = threading.Barrier(len(saves))
    responses: list[int] = []

    def run(save: Callable[[], int]) -> None:
        start.wait()
        try:
            responses.append(save())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(save,)) for save in saves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(responses)


@pytest.mark.parametrize("sent_in", ["header", "member"])
def test_of_concurrent_rest_writes_one_succeeds(sent_in: str) -> None:
    acme = factories.create_organization()
    factories.create_agent(acme)
    clients = [rest.as_role(acme, Role.OWNER) for _ in range(CLIENTS)]
    version = clients[0].get("agents/helper").json["version"]

    def write(client: rest.RestClient, text: str) -> Callable[[], int]:
        body: dict[str, Any] = {"description": text}
        if sent_in == "header":
            return lambda: client.patch("agents/helper", body, If_Match=f'"{version}"').status
        return lambda: client.patch("agents/helper", body | {"version": version}).status

    responses = run_concurrently(*(write(client, f"by {n}") for n, client in enumerate(clients)))

    assert responses == [200] + [412 if sent_in == "header" else 409] * (CLIENTS - 1)


def test_of_concurrent_policy_writes_one_succeeds() -> None:
    acme = factories.create_organization()
    agent = factories.create_agent(acme)
    clients = [rest.as_role(acme, Role.OWNER) for _ in range(CLIENTS)]
    path = "agents/helper/tool-policy"
    version = clients[0].get(path).json["version"]

    def write(client: rest.RestClient, name: str) -> Callable[[], int]:
        body = {"mode": "all", "deny": [name], "version": version}
        return lambda: client.put(path, body).status

    responses = run_concurrently(*(write(client, f"tool{n}") for n, client in enumerate(clients)))

    assert responses == [200] + [409] * (CLIENTS - 1)
    assert len(load_policy_spec(Agent.objects.get(pk=agent.pk)).deny) == 1


def test_of_two_tabs_one_save_succeeds() -> None:
    acme = factories.create_organization()
    agent = factories.create_agent(acme)
    server = admin_client.create_web_server(acme, "web")
    for name in ("read", "write"):
        admin_client.declare_tool(server, name)
    factories.attach_server(factories.build_administrator(acme), agent, server)
    browsers = [admin_client.sign_in(acme, Role.OWNER, name) for name in ("anna", "bert")]
    path = admin_client.build_url("agents_agent_policy", agent.pk)
    first, second = (Tab(browser, path) for browser in browsers)

    responses = run_concurrently(
        lambda: first.save(**{rule_field("mcp_web_read"): "deny"}),
        lambda: second.save(**{rule_field("mcp_web_write"): "deny"}),
    )

    assert responses == [302, 409]
    assert len(load_policy_spec(Agent.objects.get(pk=agent.pk)).deny) == 1
