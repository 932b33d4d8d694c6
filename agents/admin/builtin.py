"""An agent's built-in tools and the folder that they work in: what it has, and changing it (E1)."""

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import QueryDict
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.agent_stores import clear_agent_stores, list_agent_stores
from agents.builtin_tools import BUILTIN_TOOLS
from agents.builtin_tools.sandbox import fault
from agents.governance.kits import KITS, SANDBOXED, Kit, Option, completed
from agents.models import Agent
from agents.registration import AgentSpec, alter_agent
from agents.toolboxes import empty_workspace, workspace_shown
from bonobot.lib.problems import Invalid, Problem
from bonobot.lib.sayings import say
from bonobot.lib.translating import localized, whole
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, onward
from mcp_servers.admin.label_names import WORDS

STORE_NAMES = {"workspace": _("Workspace"), "notes": _("Notes")}


@dataclass(frozen=True)
class Shown:
    """An option as the form shows it."""

    option: Option
    name: str
    value: Any
    locked: bool


@dataclass(frozen=True)
class Row:
    """A kit as the form shows it; `locked` where only a platform administrator may switch it on."""

    kit: Kit
    on: bool
    locked: bool
    tools: tuple[str, ...]
    options: tuple[Shown, ...]
    trouble: str


@AgentAdmin.add_page("builtin", _("Built-in tools"), order=35)
def builtin(visit: Visit) -> HttpResponseBase:
    """Show the built-in tools and the workspace, or change them."""
    agent: Agent = visit.object
    problem = None
    if visit.request.method == "POST":
        try:
            alter_agent(visit.principal, agent, _said(visit, agent))
        except Problem as refusal:
            problem = refusal
            agent.refresh_from_db()
        else:
            messages.success(visit.request, _t("Saved. It holds on the very next call."))
            return onward(visit, "builtin")
    may_grant = visit.principal.may(Action.GRANT_HOST_ACCESS)
    return visit.show(
        "agents/builtin.html",
        agent=agent,
        kits=_rows(agent, may_grant=may_grant),
        place=workspace_shown(agent),
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
def empty(visit: Visit) -> HttpResponseBase | None:
    """Delete all that is in the agent's own folder."""
    try:
        empty_workspace(visit.principal, visit.object)
    except Problem as problem:
        messages.error(visit.request, whole(problem))
    else:
        messages.success(visit.request, _t("The workspace is empty."))
    return onward(visit, "builtin")


@AgentAdmin.add_deed("clear_data_labels", needs=Action.APPROVE_DEFINITIONS)
def clear_data_labels(visit: Visit) -> HttpResponseBase | None:
    """Clear the labels of the agent's notes and workspace."""
    clear_agent_stores(visit.principal, visit.object)
    messages.success(visit.request, _t("Data labels cleared. Effective immediately."))
    return onward(visit, "builtin")


def _rows(agent: Agent, *, may_grant: bool) -> list[Row]:
    has = completed(agent.builtin_tools)
    missing = fault()
    return [
        Row(
            kit=kit,
            on=kit.name in has,
            locked=kit.restricted and not may_grant and kit.name not in has,
            tools=tuple(tool.name for tool in BUILTIN_TOOLS.values() if tool.kit == kit.name),
            options=tuple(
                Shown(
                    option,
                    f"option-{kit.name}-{option.name}",
                    _written(option, has.get(kit.name, kit.usual)[option.name]),
                    (option.restricted or kit.restricted) and not may_grant,
                )
                for option in kit.options
            ),
            trouble=localized(f"{missing} {missing.remedy}")
            if missing and kit.name in SANDBOXED
            else "",
        )
        for kit in KITS.values()
    ]


def _written(option: Option, value: Any) -> Any:
    return ", ".join(value) if option.kind == "texts" else value


def _said(visit: Visit, agent: Agent) -> AgentSpec:
    posted = visit.request.POST
    kits = {
        kit.name: _options(kit, posted, agent.builtin_tools.get(kit.name, {}))
        for kit in KITS.values()
        if f"kit-{kit.name}" in posted
    }
    folder = posted.get("workspace_folder")
    return AgentSpec(
        name=agent.name,
        builtin_tools=kits,
        workspace_folder=None if folder is None else folder.strip(),
        workspace_mib=_number(posted, "workspace_mib", agent.workspace_mib),
        workspace_files=_number(posted, "workspace_files", agent.workspace_files),
    )


def _options(kit: Kit, posted: QueryDict, stored: dict[str, Any]) -> dict[str, Any]:
    """Return a kit's options as they were filled in; of those that were locked, the stored."""
    found: dict[str, Any] = {}
    for option in kit.options:
        name = f"option-{kit.name}-{option.name}"
        if f"{name}-there" not in posted:
            if option.name in stored:
                found[option.name] = stored[option.name]
        elif option.kind == "flag":
            found[option.name] = name in posted
        elif option.kind == "number":
            found[option.name] = _number(posted, name, option.usual)
        else:
            found[option.name] = posted.get(name, "").replace(",", " ").split()
    return found


def _number(posted: QueryDict, name: str, usual: int) -> int:
    text = posted.get(name, "").strip().replace(",", "")
    if not text:
        return usual
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Invalid(
            say("{text!r} is no whole number.", text=text[:40]),
            field=name,
            remedy="Write digits, such as 100.",
        )
    return int(text)
