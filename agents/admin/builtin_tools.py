"""The built-in tools tab of an agent, with its workspace."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.contrib import messages
from django.http import QueryDict
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.builtin_tools.command_sandbox import find_sandbox_fault
from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.builtin_tools.toolset_options import (
    SANDBOXED_TOOLSETS,
    TOOLSETS,
    Toolset,
    ToolsetOption,
    apply_defaults,
)
from agents.builtin_tools.workspaces import clear_workspace, describe_workspace
from agents.flow_labels.services import (
    build_store_version_parts,
    clear_agent_stores,
    list_agent_stores,
)
from agents.models import Agent
from agents.services import AgentSpec, update_agent
from bonobot.accounts.admin_base import ObjectRequest, add_problem_message, redirect_to_page
from bonobot.accounts.roles import Action
from bonobot.core.db.object_version import compute_version
from bonobot.core.i18n.localization import localize_text
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.amounts import parse_number
from mcp_servers.admin.store_labels import read_labels_version
from mcp_servers.flow_labels.effective_labels import LABEL_NAMES

MAX_NUMBER = 10**9
STORE_NAMES = {"workspace": _("Workspace"), "notes": _("Notes"), "instructions": _("Instructions")}


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

    toolset: Toolset
    enabled: bool
    locked: bool
    tools: tuple[str, ...]
    options: tuple[ToolsetOptionRow, ...]
    problem_text: str


@AgentAdmin.add_page("builtin", _("Built-in tools"), order=35)
def show_builtin_tools(visit: ObjectRequest) -> HttpResponseBase:
    """Show the built-in tools and the workspace, or update them."""
    agent: Agent = visit.object
    problem = None
    if visit.request.method == "POST":
        try:
            update_agent(visit.principal, agent, _parse_agent_spec(visit, agent))
        except Problem as exc:
            problem = exc
            agent.refresh_from_db()
        else:
            messages.success(visit.request, _t("Saved. Effective immediately."))
            return redirect_to_page(visit, "builtin")
    may_grant = visit.principal.may(Action.GRANT_HOST_ACCESS)
    toolsets = _build_toolset_rows(agent, may_grant=may_grant)
    workspace = describe_workspace(agent)
    stores = list_agent_stores(agent)
    return visit.render_tab(
        "builtin_tools/page.html",
        agent=agent,
        toolsets=toolsets,
        enabled_count=sum(row.enabled for row in toolsets),
        workspace=workspace,
        workspace_labels=[LABEL_NAMES[label] for label in workspace["labels"]],
        stores=[
            (
                STORE_NAMES[store.name],
                [LABEL_NAMES[label] for label in store.labels],
                store.written_at,
            )
            for store in stores
            if store.labels
        ],
        labels_version=compute_version(build_store_version_parts(stores)),
        may_clear=visit.principal.may(Action.APPROVE_DEFINITIONS),
        problem=problem,
        may_grant=may_grant,
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
        status=problem.status if problem else 200,
    )


@AgentAdmin.add_object_action("empty_workspace", required_actions=Action.MANAGE_AGENTS)
def clear_agent_workspace(visit: ObjectRequest) -> HttpResponseBase | None:
    """Delete everything in the agent's own folder."""
    try:
        clear_workspace(visit.principal, visit.object)
    except Problem as problem:
        add_problem_message(visit.request, problem)
    else:
        messages.success(visit.request, _t("The workspace is empty."))
    return redirect_to_page(visit, "builtin")


@AgentAdmin.add_object_action("clear_data_labels", required_actions=Action.APPROVE_DEFINITIONS)
def clear_data_labels(visit: ObjectRequest) -> HttpResponseBase | None:
    """Clear the labels of the agent's data, unless data with labels was written meanwhile."""
    clear_agent_stores(visit.principal, visit.object, version=read_labels_version(visit))
    messages.success(visit.request, _t("Data labels cleared. Effective immediately."))
    return redirect_to_page(visit, "builtin")


def _build_toolset_rows(agent: Agent, *, may_grant: bool) -> list[ToolsetRow]:
    enabled_options = apply_defaults(agent.builtin_tools)
    sandbox_fault = find_sandbox_fault()
    return [
        ToolsetRow(
            toolset=toolset,
            enabled=toolset.name in enabled_options,
            locked=toolset.restricted and not may_grant and toolset.name not in enabled_options,
            tools=tuple(
                tool.name for tool in BUILTIN_TOOLS.values() if tool.toolset == toolset.name
            ),
            options=tuple(
                ToolsetOptionRow(
                    option,
                    f"option-{toolset.name}-{option.name}",
                    _format_option_value(
                        option, enabled_options.get(toolset.name, toolset.defaults)[option.name]
                    ),
                    (option.restricted or toolset.restricted) and not may_grant,
                )
                for option in toolset.options
            ),
            problem_text=localize_text(f"{sandbox_fault} {sandbox_fault.remedy}")
            if sandbox_fault and toolset.name in SANDBOXED_TOOLSETS
            else "",
        )
        for toolset in TOOLSETS.values()
    ]


def _format_option_value(option: ToolsetOption, value: Any) -> Any:
    return ", ".join(value) if option.kind == "texts" else value


def _parse_agent_spec(visit: ObjectRequest, agent: Agent) -> AgentSpec:
    posted = visit.request.POST
    toolsets = {
        toolset.name: _parse_options(toolset, posted, agent.builtin_tools.get(toolset.name, {}))
        for toolset in TOOLSETS.values()
        if f"toolset-{toolset.name}" in posted
    }
    folder = posted.get("workspace_folder")
    return AgentSpec(
        name=agent.name,
        builtin_tools=toolsets,
        workspace_folder=None if folder is None else folder.strip(),
        workspace_mib=_parse_number(posted, "workspace_mib", agent.workspace_mib),
        workspace_files=_parse_number(posted, "workspace_files", agent.workspace_files),
    )


def _parse_options(
    toolset: Toolset, posted: QueryDict, stored_options: dict[str, Any]
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option in toolset.options:
        name = f"option-{toolset.name}-{option.name}"
        if f"{name}-there" not in posted:
            if option.name in stored_options:
                values[option.name] = stored_options[option.name]
        elif option.kind == "flag":
            values[option.name] = name in posted
        elif option.kind == "number":
            values[option.name] = _parse_number(posted, name, option.default)
        else:
            values[option.name] = posted.get(name, "").replace(",", " ").split()
    return values


def _parse_number(posted: QueryDict, name: str, default: int) -> int:
    text = posted.get(name, "").strip()
    if not text:
        return default
    try:
        number = parse_number(text)
    except ValueError:
        number = Decimal(-1)
    if not 0 <= number < MAX_NUMBER or number != int(number):
        raise InvalidInput(
            format_message("{text!r} isn't a whole number.", text=text[:40]),
            field=name,
            remedy="Enter digits, such as 100.",
        )
    return int(number)
