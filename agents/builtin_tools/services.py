"""Clean an agent's toolset options and folder, describe and clear its workspace."""

from collections.abc import Iterator
from dataclasses import Field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from agents.builtin_tools.toolset_options import (
    MIB,
    AgentToolsets,
    apply_defaults,
    clean_toolsets,
    list_restricted_changes,
)
from agents.builtin_tools.workspaces import build_workspace, clean_attached_folder
from agents.models import Agent
from agents.models.agents import MAX_WORKSPACE_FILES
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from mcp_servers.flow_labels import decode_labels

MAX_WORKSPACE_MIB = 1024 * 1024


class ToolsetSpec(Protocol):
    """The fields of an agent's specification for built-in tools and workspace."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def builtin_tools(self) -> Any:
        """The toolsets, as `clean_toolsets` takes them."""

    @property
    def workspace_folder(self) -> str | None:
        """The attached folder."""

    @property
    def workspace_mib(self) -> int | None:
        """The size of the workspace in MiB."""

    @property
    def workspace_files(self) -> int | None:
        """The number of files in the workspace."""


Spec = TypeVar("Spec", bound=ToolsetSpec)


def clean_toolset_spec(principal: Principal, agent: Agent, spec: Spec) -> Spec:
    """Return the specification with its toolsets and folder as they are stored.

    Raises `InvalidInput`, or `Forbidden` (`platform_admin_only`) for newly granted access beyond
    the workspace.
    """
    if spec.builtin_tools is not None:
        toolset_options = clean_toolsets(spec.builtin_tools)
        if restricted_changes := list_restricted_changes(agent.builtin_tools, toolset_options):
            _require_platform_admin(
                principal,
                f"builtin_tools.{restricted_changes[0]}",
                format_message("grant `{granted}`", granted=restricted_changes[0]),
            )
        spec = replace(spec, builtin_tools=toolset_options)
    if spec.workspace_folder and spec.workspace_folder != agent.workspace_folder:
        _require_platform_admin(principal, "workspace_folder", "attach a folder of this host")
        spec = replace(spec, workspace_folder=_clean_workspace_folder(agent, spec.workspace_folder))
    for name, maximum in (
        ("workspace_mib", MAX_WORKSPACE_MIB),
        ("workspace_files", MAX_WORKSPACE_FILES),
    ):
        value = getattr(spec, name)
        if value is not None and not 1 <= value <= maximum:
            raise InvalidInput(
                format_message("{value} is out of range.", value=value),
                field=name,
                remedy=format_message("Enter a number from 1 to {most:,}.", most=maximum),
            )
    return spec


def build_toolbox(agent: Agent) -> AgentToolsets:
    """Return the toolsets and workspace limits of an agent."""
    return AgentToolsets(
        options_by_toolset=apply_defaults(agent.builtin_tools),
        folder=agent.workspace_folder,
        max_bytes=agent.workspace_mib * MIB,
        max_files=agent.workspace_files,
        stored_labels=decode_labels(agent.workspace_labels),
    )


def describe_workspace(agent: Agent) -> dict[str, Any]:
    """Return the workspace's folder, labels, usage and limits. Blocks while counting files."""
    workspace = build_workspace(agent.organization_id, agent.pk, build_toolbox(agent))
    description = {
        "folder": agent.workspace_folder,
        "attached": workspace.attached,
        "labels": list(decode_labels(agent.workspace_labels)),
    }
    if workspace.attached:
        return description | dict.fromkeys(("bytes", "files", "max_bytes", "max_files"))
    limits = {"max_bytes": workspace.max_bytes, "max_files": workspace.max_files}
    if not workspace.root.is_dir():
        return description | limits | {"bytes": 0, "files": 0}
    with workspace.open() as folder:
        usage = workspace.measure_usage(folder)
    return description | limits | {"bytes": usage.size, "files": usage.file_count}


def clear_workspace(principal: Principal, agent: Agent) -> None:
    """Delete the contents and flow labels of an agent's own workspace.

    Raises `Conflict` (`attached_folder`) if the folder is attached.
    """
    principal.require(Action.MANAGE_AGENTS)
    if agent.workspace_folder:
        raise Conflict(
            "The agent uses an attached folder, which can't be deleted here.",
            code="attached_folder",
            remedy="Detach the folder first, or delete its contents on the host.",
        )
    workspace = build_workspace(agent.organization_id, agent.pk, build_toolbox(agent))
    with record_change(
        **describe_row("agent", agent), actor=principal.actor, action="workspace_cleared"
    ):
        with workspace.open() as folder, workspace.lock(folder):
            for entry in folder.list_entries("", MAX_WORKSPACE_FILES)[0]:
                folder.delete(entry.path, with_contents=True)
        Agent.objects.filter(pk=agent.pk).update(workspace_labels=0)
    agent.workspace_labels = 0


def _clean_workspace_folder(agent: Agent, path: str) -> str:
    """Return the folder; it may be another agent's, but not be inside or contain one.

    An agent that can rename folders above another's workspace could replace it with a link.
    """
    folder = Path(clean_attached_folder(path))
    for other_folder in _iterate_other_folders(agent):
        if other_folder != folder and (
            other_folder.is_relative_to(folder) or folder.is_relative_to(other_folder)
        ):
            raise InvalidInput(
                format_message(
                    "{folder!r} is inside another agent's folder, or contains it.",
                    folder=str(folder),
                ),
                code="nested_folders",
                field="workspace_folder",
                remedy="Attach a folder that doesn't overlap with it, or attach the same folder.",
            )
    return str(folder)


def _iterate_other_folders(agent: Agent) -> Iterator[Path]:
    other_agents = Agent.objects.exclude(pk=agent.pk).exclude(workspace_folder="")
    for folder in other_agents.values_list("workspace_folder", flat=True).distinct():
        yield Path(folder)


def _require_platform_admin(principal: Principal, field: str, action: str) -> None:
    if not principal.may(Action.GRANT_HOST_ACCESS):
        raise Forbidden(
            format_message("Only a platform administrator can {what}.", what=action),
            code="platform_admin_only",
            field=field,
            rule="platform_admin",
            remedy="Contact a platform administrator.",
        )
