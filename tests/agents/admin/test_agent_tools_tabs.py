"""Two tabs with the matrix of an agent's tools: no save reverts the other's."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from agents.agent_tools.services import save_settings
from agents.agent_tools.settings import Setting, ToolKey
from agents.models import Agent
from agents.policies.services import PolicySpec, load_policy_spec, set_policy
from agents.services import attach_server, detach_server
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from mcp_servers.models import Server
from tests import admin_client, factories
from tests.agents.admin.test_agent_tools import (
    acme,
    administrator,
    decide,
    helper,
    operator,
    read_form,
    server,
)
from tests.selection import WHOLE

__all__ = ["acme", "administrator", "helper", "operator", "server"]

pytestmark = pytest.mark.django_db

Save = Callable[[Principal, Agent, UUID], None]


def deny_tool(mara: Principal, agent: Agent, server_id: UUID) -> None:
    save_settings(mara, agent, {ToolKey("mcp", server_id, "add"): Setting.DENY}, {})


def deny_default(mara: Principal, agent: Agent, server_id: UUID) -> None:
    save_settings(mara, agent, {}, {server_id: Setting.DENY})


def deny_by_policy(mara: Principal, agent: Agent, server_id: UUID) -> None:
    set_policy(mara, agent, PolicySpec("all", deny=("mcp_web_add",)))


def deny_by_pattern(mara: Principal, agent: Agent, server_id: UUID) -> None:
    set_policy(mara, agent, PolicySpec("all", deny=("mcp_web_a*",)))


def deny_all(mara: Principal, agent: Agent, server_id: UUID) -> None:
    set_policy(mara, agent, PolicySpec("none"))


def ask_tool(mara: Principal, agent: Agent, server_id: UUID) -> None:
    save_settings(mara, agent, {ToolKey("mcp", server_id, "add"): Setting.ASK}, {})


def unselect_tool(mara: Principal, agent: Agent, server_id: UUID) -> None:
    attach_server(mara, agent, Server.objects.get(pk=server_id), denied_tools=["add"])


def detach(mara: Principal, agent: Agent, server_id: UUID) -> None:
    detach_server(mara, agent, Server.objects.get(pk=server_id))


SAVES: tuple[Save, ...] = (
    *(deny_tool, deny_default, deny_by_policy, deny_by_pattern),
    *(deny_all, ask_tool, unselect_tool, detach),
)
# What the first tab saves next to what it shows.
ENTERED: dict[str, dict[str, str]] = {
    "nothing": {},
    "another tool": {"tool-mcp_web_echo": "ask"},
    "a built-in tool": {"tool-read_result": "ask"},
}


def read_decision(agent: Agent) -> str:
    """Return the decision about `add`; a tool that isn't there can't be called."""
    try:
        return decide(agent, "add")[0]
    except KeyError:
        return "absent"


# The form of a search for `add` has no other tool.
FIRST_TABS: dict[str, tuple[str, dict[str, str]]] = {
    **{entered: (entered, {}) for entered in ENTERED},
    "a search": ("nothing", {"q": "add"}),
}
# Each save with a change of another tool; each other content of the first tab with some saves, and
# with all of them in the whole suite.
SOME_SAVES = {
    "nothing": (deny_tool, deny_by_pattern),
    "a built-in tool": (deny_default, detach),
    "a search": (deny_all, ask_tool),
}


@pytest.mark.parametrize(
    ("save", "entered", "query"),
    [
        pytest.param(save, *FIRST_TABS[name], id=f"{save.__name__}-{name}")
        for name in FIRST_TABS
        for save in (SAVES if WHOLE else SOME_SAVES.get(name, SAVES))
    ],
)
def test_a_save_in_the_first_tab_keeps_the_restriction_of_the_second(
    acme: Any,
    administrator: Principal,
    helper: Agent,
    operator: admin_client.AdminClient,
    save: Save,
    entered: str,
    query: dict[str, str],
) -> None:
    set_policy(administrator, helper, PolicySpec("all"))
    page = operator.get("agents_agent_servers", helper.pk, **query)
    fields = read_form(page, helper) | ENTERED[entered]
    mara = factories.create_member(acme, Role.OPERATOR, "mara")
    save(mara, helper, helper.agent_servers.get().server_id)
    restricted = read_decision(helper)
    assert restricted != "allow"
    path = admin_client.build_url("agents_agent_servers", helper.pk)
    response = operator.client.post(path, fields)
    assert response.status_code in (302, 400, 409)
    assert read_decision(helper) == restricted
    # Also after the merged form of the conflict was saved.
    if response.status_code == 409 and "tool-mcp_web_add" in response.content.decode():
        operator.client.post(path, read_form(response.content.decode(), helper))
        assert read_decision(helper) == restricted


def test_an_undo_keeps_the_restriction_of_another_tab(
    acme: Any, administrator: Principal, helper: Agent, operator: admin_client.AdminClient
) -> None:
    set_policy(administrator, helper, PolicySpec("all"))
    page = operator.post("agents_agent_servers", helper.pk, **{"tool-mcp_web_echo": "ask"})
    replaced = page.partition('name="replaced" value="')[2].partition('"')[0]
    mara = factories.create_member(acme, Role.OPERATOR, "mara")
    deny_tool(mara, helper, helper.agent_servers.get().server_id)
    operator.post("agents_agent_restore_policy", helper.pk, replaced=replaced)
    assert decide(helper, "add", "echo") == ["deny", "ask"]
    assert "mcp_web_add" in load_policy_spec(helper).deny
