"""Folders and files that presets of programs may be given (DESIGN section 6).

Whoever fills in a preset chooses what its program reads and writes on this host. So a parameter of
the kind `folder` or `file` lies in the organization's own workspace, or in a folder that a platform
administrator allowed (`BONOBOT_PRESET_FOLDERS`); links are followed before that is decided.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings

from bonobot.lib.keys import private_folder
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from bonobot.tenancy.models import Organization
from mcp_servers.connections.folder_rules import FolderRule

KINDS = frozenset(("folder", "file"))


def workspace(organization_id: UUID) -> Path:
    """Return the folder of the organization's own; it may not be there yet."""
    slug = Organization.objects.values_list("slug", flat=True).get(pk=organization_id)
    return Path(settings.BONOBOT_VAR) / "workspaces" / slug


def allowed_folders(organization_id: UUID) -> tuple[Path, ...]:
    """Return the folders in which a preset's folders and files may lie, the own one first."""
    return (workspace(organization_id), *map(Path, settings.BONOBOT_PRESET_FOLDERS))


def folder_rule(organization_id: UUID) -> FolderRule:
    """Return which folders a stdio server of an organization may be given (one query)."""
    return FolderRule(closed=(str(settings.BONOBOT_VAR),), own=(str(workspace(organization_id)),))


def settled(
    organization_id: UUID, parameters: Iterable[Mapping[str, Any]], values: Mapping[str, str]
) -> dict[str, str]:
    """Return the values with folders and files as they really lie, links followed.

    What is missing in the organization's own workspace is made there. Raises `Invalid`
    (`folder_not_allowed`, `folder_missing`) with the parameter as its field.
    """
    found = {name.upper(): value for name, value in values.items()}
    for parameter in parameters:
        value = found.get(parameter["name"].upper()) or str(parameter.get("default") or "")
        if parameter.get("kind") in KINDS and value:
            found[parameter["name"].upper()] = str(_settled(organization_id, parameter, value))
    return found


def _settled(organization_id: UUID, parameter: Mapping[str, Any], value: str) -> Path:
    own, *others = allowed_folders(organization_id)
    path = Path(value)
    if not path.is_absolute() or ".." in path.parts or "\x00" in value:
        raise _refused(parameter, value, "must be an absolute path without `..`", (own, *others))
    real = path.resolve()
    roots = [folder.resolve() for folder in (own, *others)]
    if not any(real.is_relative_to(root) for root in roots):
        raise _refused(parameter, value, "lies outside the allowed folders", (own, *others))
    if why := folder_rule(organization_id).refusal(str(real)):
        raise _refused(parameter, value, say("may not be used: {why}", why=why), (own, *others))
    is_folder = parameter["kind"] == "folder"
    folder = real if is_folder else real.parent
    if real.is_relative_to(roots[0]) and not folder.exists():
        private_folder(folder)
    if not folder.is_dir() or (not is_folder and real.is_dir()):
        raise _missing(parameter, value)
    return real


def _refused(
    parameter: Mapping[str, Any], value: str, why: str, folders: Iterable[Path]
) -> Invalid:
    listed = ", ".join(f"`{folder}`" for folder in folders)
    return Invalid(
        f"{_label(parameter)} {why}: `{visible(value, 300)}`.",
        code="folder_not_allowed",
        field=parameter["name"],
        rule="preset_folders",
        remedy=say(
            "Choose a path within {listed}; a platform administrator allows "
            "more folders with `BONOBOT_PRESET_FOLDERS`.",
            listed=listed,
        ),
    )


def _missing(parameter: Mapping[str, Any], value: str) -> Invalid:
    what = "folder" if parameter["kind"] == "folder" else "place for a file"
    return Invalid(
        say(
            "{parameter}: there is no such {what} on this host: `{visible}`.",
            parameter=_label(parameter),
            what=what,
            visible=visible(value, 300),
        ),
        code="folder_missing",
        field=parameter["name"],
        remedy="Make it first, or choose another one.",
    )


def _label(parameter: Mapping[str, Any]) -> str:
    return visible(str(parameter.get("label") or parameter["name"]), 100)
