"""Clean an agent's toolset options and folder, describe and clear its workspace."""

from collections.abc import Iterator
from dataclasses import Field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from agents.builtin_tools.toolset_options import (
    MIB,
    AgentToolsets,
    apply_defaults,
    check_kits,
    list_restricted_changes,
)
from agents.builtin_tools.workspaces import build_workspace, check_folder
from agents.models import Agent
from agents.models.workspace_limits import MOST_FILES
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.ledger.audit.admin_changes import record_change
from mcp_servers.flow_labels import decode_labels

LARGEST_MIB = 1024 * 1024


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


def check_builtin_tools(principal: Principal, agent: Agent, spec: Spec) -> Spec:
    """Return the specification with its toolsets and folder as they are stored.

    Raises `InvalidInput`, or `Forbidden` (`platform_admin_only`) for newly granted access beyond
    the workspace.
    """
    if spec.builtin_tools is not None:
        wanted = check_kits(spec.builtin_tools)
        if granted := list_restricted_changes(agent.builtin_tools, wanted):
            _require(
                principal,
                f"builtin_tools.{granted[0]}",
                format_message("grant `{granted}`", granted=granted[0]),
            )
        spec = replace(spec, builtin_tools=wanted)
    if spec.workspace_folder and spec.workspace_folder != agent.workspace_folder:
        _require(principal, "workspace_folder", "attach a folder of this host")
        spec = replace(spec, workspace_folder=_check_workspace_folder(agent, spec.workspace_folder))
    for name, most in (("workspace_mib", LARGEST_MIB), ("workspace_files", MOST_FILES)):
        value = getattr(spec, name)
        if value is not None and not 1 <= value <= most:
            raise InvalidInput(
                format_message("{value} is out of bounds.", value=value),
                field=name,
                remedy=format_message("Write a number of 1 to {most:,}.", most=most),
            )
    return spec


def build_toolbox(agent: Agent) -> AgentToolsets:
    """Return the toolsets and workspace limits of an agent."""
    return AgentToolsets(
        kits=apply_defaults(agent.builtin_tools),
        folder=agent.workspace_folder,
        most_bytes=agent.workspace_mib * MIB,
        most_files=agent.workspace_files,
        holds=decode_labels(agent.workspace_holds),
    )


def describe_workspace(agent: Agent) -> dict[str, Any]:
    """Return the workspace's folder, labels, usage and limits. Blocks while counting files."""
    place = build_workspace(agent.organization_id, agent.pk, build_toolbox(agent))
    found = {
        "folder": agent.workspace_folder,
        "attached": place.attached,
        "labels": list(decode_labels(agent.workspace_holds)),
    }
    if place.attached:
        return found | dict.fromkeys(("bytes", "files", "most_bytes", "most_files"))
    bounds = {"most_bytes": place.most_bytes, "most_files": place.most_files}
    if not place.root.is_dir():
        return found | bounds | {"bytes": 0, "files": 0}
    with place.open() as folder:
        used = place.usage(folder)
    return found | bounds | {"bytes": used.size, "files": used.files}


def clear_workspace(principal: Principal, agent: Agent) -> None:
    """Delete the contents and flow labels of an agent's own workspace.

    Raises `Conflict` (`attached_folder`) if the folder is attached.
    """
    principal.require(Action.MANAGE_AGENTS)
    if agent.workspace_folder:
        raise Conflict(
            "The agent works in an attached folder, which is not deleted from here.",
            code="attached_folder",
            remedy="Detach it first, or empty it where it is.",
        )
    place = build_workspace(agent.organization_id, agent.pk, build_toolbox(agent))
    with record_change(
        organization_id=agent.organization_id,
        actor=principal.actor,
        action="workspace_emptied",
        resource_type="agent",
        resource_id=str(agent.pk),
        resource_name=agent.name,
    ):
        with place.open() as folder, place.changing(folder):
            for entry in folder.children("", MOST_FILES)[0]:
                folder.delete(entry.path, with_contents=True)
        Agent.objects.filter(pk=agent.pk).update(workspace_holds=0)
    agent.workspace_holds = 0


def _check_workspace_folder(agent: Agent, path: str) -> str:
    """Return the folder; it may be another agent's, but not be inside or contain one.

    An agent that can rename folders above another's workspace could replace it with a link.
    """
    found = Path(check_folder(path))
    for other in _list_other_folders(agent):
        if other != found and (other.is_relative_to(found) or found.is_relative_to(other)):
            raise InvalidInput(
                format_message(
                    "{found!r} lies in another agent's folder, or holds it.", found=str(found)
                ),
                code="nested_folders",
                field="workspace_folder",
                remedy="Attach a folder beside it, or the very same one.",
            )
    return str(found)


def _list_other_folders(agent: Agent) -> Iterator[Path]:
    taken = Agent.objects.exclude(pk=agent.pk).exclude(workspace_folder="")
    for folder in taken.values_list("workspace_folder", flat=True).distinct():
        yield Path(folder)


def _require(principal: Principal, field: str, what: str) -> None:
    if not principal.may(Action.GRANT_HOST_ACCESS):
        raise Forbidden(
            format_message("Only a platform administrator may {what}.", what=what),
            code="platform_admin_only",
            field=field,
            rule="platform_admin",
            remedy="Ask a platform administrator.",
        )
