"""Folders and files that stdio presets may use (docs/stdio-servers.md).

A parameter of the kind `folder` or `file` must be in the organization's own workspace, or in a
folder that a platform administrator allowed (`BONOBOT_PRESET_FOLDERS`); symbolic links are resolved
first.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings

from bonobot.accounts.models import Organization
from bonobot.core.crypto.key_files import ensure_private_folder
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.client.folder_rules import FolderRule

FOLDER_KINDS = frozenset(("folder", "file"))


def get_organization_folder(organization_id: UUID) -> Path:
    """Return the organization's own workspace folder; it may not exist yet."""
    slug = Organization.objects.values_list("slug", flat=True).get(pk=organization_id)
    return Path(settings.BONOBOT_VAR) / "workspaces" / slug


def list_allowed_folders(organization_id: UUID) -> tuple[Path, ...]:
    """Return the folders that presets may use, the organization's own first."""
    return (get_organization_folder(organization_id), *map(Path, settings.BONOBOT_PRESET_FOLDERS))


def build_folder_rule(organization_id: UUID) -> FolderRule:
    """Return the rule for folders of an organization's stdio servers (one query)."""
    return FolderRule(
        denied=(str(settings.BONOBOT_VAR),),
        allowed=(str(get_organization_folder(organization_id)),),
    )


def resolve_folders(
    organization_id: UUID, parameters: Iterable[Mapping[str, Any]], values: Mapping[str, str]
) -> dict[str, str]:
    """Return the values with real paths of folders and files, symbolic links resolved.

    Missing folders in the organization's own workspace are created. Raises `InvalidInput`
    (`folder_not_allowed`, `folder_missing`) with the parameter as its field.
    """
    resolved = {name.upper(): value for name, value in values.items()}
    for parameter in parameters:
        value = resolved.get(parameter["name"].upper()) or str(parameter.get("default") or "")
        if parameter.get("kind") in FOLDER_KINDS and value:
            resolved[parameter["name"].upper()] = str(
                _resolve_folder(organization_id, parameter, value)
            )
    return resolved


def _resolve_folder(organization_id: UUID, parameter: Mapping[str, Any], value: str) -> Path:
    own_folder, *other_folders = list_allowed_folders(organization_id)
    path = Path(value)
    if not path.is_absolute() or ".." in path.parts or "\x00" in value:
        raise _build_folder_error(
            parameter, value, "must be an absolute path without `..`", (own_folder, *other_folders)
        )
    real_path = path.resolve()
    roots = [folder.resolve() for folder in (own_folder, *other_folders)]
    if not any(real_path.is_relative_to(root) for root in roots):
        raise _build_folder_error(
            parameter, value, "is outside the allowed folders", (own_folder, *other_folders)
        )
    if reason := build_folder_rule(organization_id).find_refusal(str(real_path)):
        raise _build_folder_error(
            parameter,
            value,
            format_message("can't be used because {why}", why=reason),
            (own_folder, *other_folders),
        )
    is_folder = parameter["kind"] == "folder"
    folder = real_path if is_folder else real_path.parent
    if real_path.is_relative_to(roots[0]) and not folder.exists():
        ensure_private_folder(folder)
    if not folder.is_dir() or (not is_folder and real_path.is_dir()):
        raise _build_missing_error(parameter, value)
    return real_path


def _build_folder_error(
    parameter: Mapping[str, Any], value: str, reason: str, folders: Iterable[Path]
) -> InvalidInput:
    folder_list = ", ".join(f"`{folder}`" for folder in folders)
    return InvalidInput(
        f"{_get_label(parameter)} {reason}: `{make_visible(value, 300)}`.",
        code="folder_not_allowed",
        field=parameter["name"],
        rule="preset_folders",
        remedy=format_message(
            "Choose a path within {listed}. A platform administrator can allow more "
            "folders with `BONOBOT_PRESET_FOLDERS`.",
            listed=folder_list,
        ),
    )


def _build_missing_error(parameter: Mapping[str, Any], value: str) -> InvalidInput:
    kind_name = "folder" if parameter["kind"] == "folder" else "place for a file"
    return InvalidInput(
        format_message(
            "{parameter}: no such {what} on this host: `{visible}`.",
            parameter=_get_label(parameter),
            what=kind_name,
            visible=make_visible(value, 300),
        ),
        code="folder_missing",
        field=parameter["name"],
        remedy="Create it first, or choose another one.",
    )


def _get_label(parameter: Mapping[str, Any]) -> str:
    return make_visible(str(parameter.get("label") or parameter["name"]), 100)
