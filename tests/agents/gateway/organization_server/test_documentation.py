"""The documentation lists the tools that a platform administrator has."""

from pathlib import Path

import pytest

from agents.gateway.organization_server.handlers import load_tools
from agents.gateway.organization_server.tools import OrganizationTool
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import ROLE_ACTIONS, Role
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Path(__file__).parents[4] / "docs" / "agents-as-tools.md"


def describe_effect(tool: OrganizationTool) -> str:
    hints = tool.hints
    if hints.read_only:
        return "reads"
    if hints.open_world:
        return "acts"
    return "changes" if hints.destructive else "adds"


def test_the_page_lists_every_tool_with_its_roles(acme: Organization, helper: Agent) -> None:
    members = {role: factories.create_member(acme, role) for role in ROLE_ACTIONS}
    helper.members.add(members[Role.MEMBER].id)
    allowed = {role: set(load_tools(principal)) for role, principal in members.items()}
    lines = ["| tool | | what it does | roles |", "|---|---|---|---|"]
    for name, tool in load_tools(factories.build_administrator(acme)).items():
        label = name.replace("helper_chat", "{slug}_chat")
        title = tool.title.replace("Helper", "the agent")
        roles = ", ".join(role for role in ROLE_ACTIONS if name in allowed[role])
        lines.append(f"| `{label}` | {describe_effect(tool)} | {title} | {roles} |")
    assert "\n".join(lines) in PAGE.read_text(encoding="utf-8"), "\n".join(lines)
