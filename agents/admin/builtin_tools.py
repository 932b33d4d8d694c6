"""The built-in tools tab of an agent, with its workspace."""

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import QueryDict
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.builtin_tools.command_sandbox import find_sandbox_fault
from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.builtin_tools.services import clear_workspace, describe_workspace
from agents.builtin_tools.toolset_options import (
    KITS,
    SANDBOXED,
    Toolset,
    ToolsetOption,
    apply_defaults,
)
from agents.flow_labels.agent_stores import clear_agent_stores, list_agent_stores
from agents.models import Agent
from agents.services import AgentSpec, update_agent
from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page
from bonobot.accounts.roles import Action
from bonobot.core.i18n.localization import localize_problem, localize_text
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from mcp_servers.flow_labels.services import WORDS

STORE_NAMES = {"workspace": _("Workspace"), "notes": _("Notes")}


@dataclass(frozen=True)
class ToolsetOptionRow:
    """A toolset option as the form shows it."""

    option: ToolsetOption
    name: str
    value: Any
    locked: bool


@dataclass(frozen=True)
class ToolsetRow:
    """A toolset as the form shows it; `locked` if only a platform administrator may enable it."""

    kit: Toolset
    on: bool
    locked: bool
    tools: tuple[str, ...]
    options: tuple[ToolsetOptionRow, ...]
    trouble: str


@AgentAdmin.add_page("builtin", _("Built-in tools"), order=35)
def show_builtin_tools(visit: ObjectRequest) -> HttpResponseBase:
    """Show the built-in tools and the workspace, or update them."""
    agent: Agent = visit.object
    problem = None
    if visit.request.method == "POST":
        try:
            update_agent(visit.principal, agent, _parse_agent_spec(visit, agent))
        except Problem as refusal:
            problem = refusal
            agent.refresh_from_db()
        else:
            messages.success(visit.request, _t("Saved. It holds on the very next call."))
            return redirect_to_page(visit, "builtin")
    may_grant = visit.principal.may(Action.GRANT_HOST_ACCESS)
    return visit.show(
        "agents/builtin.html",
        agent=agent,
        kits=_build_toolset_rows(agent, may_grant=may_grant),
        place=describe_workspace(agent),
        stores=[
            (STORE_NAMES[one.name], [WORDS[label] for label in one.labels])
            for one in list_agent_stores(agent)
            if one.labels
        ],
        may_clear=visit.principal.may(Action.APPROVE_DEFINITIONS),
        problem=problem,
        may_grant=may_grant,
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
        status=problem.status if problem else 200,
    )


@AgentAdmin.add_deed("workspace_empty", needs=Action.MANAGE_AGENTS)
def clear_agent_workspace(visit: ObjectRequest) -> HttpResponseBase | None:
    """Delete everything in the agent's own folder."""
    try:
        clear_workspace(visit.principal, visit.object)
    except Problem as problem:
        messages.error(visit.request, localize_problem(problem))
    else:
        messages.success(visit.request, _t("The workspace is empty."))
    return redirect_to_page(visit, "builtin")


@AgentAdmin.add_deed("clear_data_labels", needs=Action.APPROVE_DEFINITIONS)
def clear_data_labels(visit: ObjectRequest) -> HttpResponseBase | None:
    """Clear the labels of the agent's notes and workspace."""
    clear_agent_stores(visit.principal, visit.object)
    messages.success(visit.request, _t("Data labels cleared. Effective immediately."))
    return redirect_to_page(visit, "builtin")


def _build_toolset_rows(agent: Agent, *, may_grant: bool) -> list[ToolsetRow]:
    has = apply_defaults(agent.builtin_tools)
    missing = find_sandbox_fault()
    return [
        ToolsetRow(
            kit=kit,
            on=kit.name in has,
            locked=kit.restricted and not may_grant and kit.name not in has,
            tools=tuple(tool.name for tool in BUILTIN_TOOLS.values() if tool.kit == kit.name),
            options=tuple(
                ToolsetOptionRow(
                    option,
                    f"option-{kit.name}-{option.name}",
                    _format_option_value(option, has.get(kit.name, kit.usual)[option.name]),
                    (option.restricted or kit.restricted) and not may_grant,
                )
                for option in kit.options
            ),
            trouble=localize_text(f"{missing} {missing.remedy}")
            if missing and kit.name in SANDBOXED
            else "",
        )
        for kit in KITS.values()
    ]


def _format_option_value(option: ToolsetOption, value: Any) -> Any:
    return ", ".join(value) if option.kind == "texts" else value


def _parse_agent_spec(visit: ObjectRequest, agent: Agent) -> AgentSpec:
    posted = visit.request.POST
    kits = {
        kit.name: _parse_options(kit, posted, agent.builtin_tools.get(kit.name, {}))
        for kit in KITS.values()
        if f"kit-{kit.name}" in posted
    }
    folder = posted.get("workspace_folder")
    return AgentSpec(
        name=agent.name,
        builtin_tools=kits,
        workspace_folder=None if folder is None else folder.strip(),
        workspace_mib=_parse_number(posted, "workspace_mib", agent.workspace_mib),
        workspace_files=_parse_number(posted, "workspace_files", agent.workspace_files),
    )


def _parse_options(kit: Toolset, posted: QueryDict, stored: dict[str, Any]) -> dict[str, Any]:
    """Return the posted options of a toolset, and the stored values of locked ones."""
    found: dict[str, Any] = {}
    for option in kit.options:
        name = f"option-{kit.name}-{option.name}"
        if f"{name}-there" not in posted:
            if option.name in stored:
                found[option.name] = stored[option.name]
        elif option.kind == "flag":
            found[option.name] = name in posted
        elif option.kind == "number":
            found[option.name] = _parse_number(posted, name, option.usual)
        else:
            found[option.name] = posted.get(name, "").replace(",", " ").split()
    return found


def _parse_number(posted: QueryDict, name: str, usual: int) -> int:
    text = posted.get(name, "").strip().replace(",", "")
    if not text:
        return usual
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidInput(
            format_message("{text!r} is no whole number.", text=text[:40]),
            field=name,
            remedy="Write digits, such as 100.",
        )
    return int(text)
