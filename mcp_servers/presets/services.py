"""Create, update and delete presets, and configure servers from them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import URLValidator
from django.db import IntegrityError

from bonobot.accounts.deletions import keep_deleted_rows
from bonobot.accounts.models import Deletion
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput, NotFound
from bonobot.ledger.audit.admin_changes import record_change
from mcp_servers.audit import update_server_columns
from mcp_servers.models import Preset, Secret, Server
from mcp_servers.presets.allowed_folders import resolve_folders
from mcp_servers.presets.catalog import fill_preset
from mcp_servers.presets.enabled_presets import check_enabled
from mcp_servers.presets.validation import check_preset_columns
from mcp_servers.server_config import ServerSpec
from mcp_servers.server_names import check_name, slugify

PLACEHOLDER = re.compile(r"\$\{[A-Z0-9_]+\}")
DISPLAY_FIELDS = ("name", "description", "category", "icon", "documentation_url")
# Fields that decide what program a preset starts, and its limits.
LAUNCH_FIELDS = ("transport_type", "endpoint_config", "auth_type", "auth_config", "parameters")
SECRET_FIELDS: dict[str, str] = {Secret.Placement.ENV: "env", Secret.Placement.HEADER: "headers"}


@dataclass(frozen=True, kw_only=True)
class PresetSpec:
    """The values of a preset; `${NAME}` in the configuration is a parameter."""

    name: str
    transport_type: str
    endpoint_config: Mapping[str, Any]
    auth_config: Mapping[str, Any] = field(default_factory=lambda: {"type": "none"})
    parameters: list[dict[str, Any]] = field(default_factory=list)
    description: str = ""
    category: str = "own"
    icon: str = ""
    documentation_url: str = ""

    def to_columns(self) -> dict[str, Any]:
        auth = dict(self.auth_config)
        auth_type = auth.pop("type", "none")
        auth.pop("configured", None)
        return {
            **{name: getattr(self, name) for name in DISPLAY_FIELDS},
            "transport_type": self.transport_type,
            "endpoint_config": dict(self.endpoint_config),
            "auth_type": auth_type,
            "auth_config": auth,
            "parameters": [dict(parameter) for parameter in self.parameters],
        }


def build_spec(preset: Preset) -> PresetSpec:
    """Return the specification of an existing preset."""
    return PresetSpec(
        **{name: getattr(preset, name) for name in DISPLAY_FIELDS},
        transport_type=preset.transport_type,
        endpoint_config=preset.endpoint_config,
        auth_config={"type": preset.auth_type, **preset.auth_config},
        parameters=preset.parameters,
    )


def create_preset(principal: Principal, spec: PresetSpec) -> Preset:
    """Create a preset in the principal's organization.

    Raises `InvalidInput`, `Conflict` (`name_taken`), and `Forbidden` (`platform_admin_only`) for a
    preset that starts a program.
    """
    principal.require(Action.MANAGE_SERVERS)
    preset = Preset(organization_id=principal.organization_id, proof={"kind": "own"})
    return _save_preset(principal, preset, spec, "preset_created")


def update_preset(principal: Principal, preset: Preset, spec: PresetSpec) -> Preset:
    """Update a preset; existing servers don't change. Raises as `create_preset`."""
    _check_editable(principal, preset)
    return _save_preset(principal, preset, spec, "preset_updated")


def patch_preset(principal: Principal, preset: Preset, changes: Mapping[str, Any]) -> Preset:
    """Update some values of a preset."""
    _check_editable(principal, preset)
    return update_preset(principal, preset, replace(build_spec(preset), **changes))


def delete_preset(principal: Principal, preset: Preset) -> Deletion | None:
    """Delete a preset; servers created from it stay. Returns the deletion, to restore it."""
    _check_editable(principal, preset)
    with record_change(**_build_audit_fields(principal, preset, "preset_deleted", {})):
        deletion = keep_deleted_rows(principal, "mcp_preset", preset)
        preset.delete()
    return deletion


def _check_editable(principal: Principal, preset: Preset) -> None:
    principal.require(Action.MANAGE_SERVERS)
    if preset.organization_id is None:
        raise Forbidden(
            format_message(
                "`{preset_slug}` is part of Bonobot's catalog and is updated with each release.",
                preset_slug=preset.slug,
            ),
            code="platform_preset",
            rule="presets",
            remedy="Create a preset for your organization. A preset with the same name takes "
            "precedence.",
        )


def _save_preset(principal: Principal, preset: Preset, spec: PresetSpec, action: str) -> Preset:
    columns = spec.to_columns()
    changed_names = [name for name, value in columns.items() if getattr(preset, name) != value]
    _check_can_start(principal, preset, columns, changed_names)
    check_name(spec.name)
    _check_documentation_url(spec.documentation_url)
    check_preset_columns(columns)
    _check_address(principal, columns)
    for name, value in columns.items():
        setattr(preset, name, value.strip() if name == "name" else value)
    preset.slug = preset.slug or slugify(spec.name).replace("_", "-")
    same_slug = Preset.objects.filter(organization_id=principal.organization_id, slug=preset.slug)
    if same_slug.exclude(pk=preset.pk).exists():
        raise build_name_conflict(spec.name)
    record_preset_change(principal, preset, action, preset.save, changed=sorted(changed_names))
    return preset


def _check_can_start(
    principal: Principal, preset: Preset, columns: Mapping[str, Any], changed_names: list[str]
) -> None:
    """Raise `Forbidden` unless the principal may change what program this preset starts."""
    stdio = Server.Transport.STDIO in (preset.transport_type, columns["transport_type"])
    if stdio and not principal.platform_admin and set(changed_names) & set(LAUNCH_FIELDS):
        raise Forbidden(
            "Only a platform administrator can change which program a preset starts, or "
            "its arguments.",
            code="platform_admin_only",
            field="endpoint_config",
            rule="stdio",
            remedy="Contact a platform administrator. You can change the name, description, and "
            "links yourself.",
        )


def _check_address(principal: Principal, columns: Mapping[str, Any]) -> None:
    """Raise `EgressDenied` for a URL of a server that the principal can't add.

    A host with parameters is checked when they are filled in.
    """
    from bonobot.core.http.egress import EgressDenied, check_url

    url = str(columns["endpoint_config"].get("url", ""))
    if columns["transport_type"] == Server.Transport.STDIO or "${" in urlsplit(url).netloc:
        return
    try:
        check_url(
            PLACEHOLDER.sub("x", url), allow_private=principal.may(Action.ALLOW_PRIVATE_ADDRESS)
        )
    except EgressDenied as problem:
        problem.field = "endpoint_config.url"
        raise


def _check_documentation_url(url: str) -> None:
    if not url:
        return
    try:
        URLValidator(schemes=["https", "http"])(url)
    except ValidationError:
        raise InvalidInput(
            "The documentation link isn't a valid URL.",
            field="documentation_url",
            remedy="Enter the full URL, such as https://docs.example.com/.",
        ) from None


def record_preset_change(
    principal: Principal,
    preset: Preset,
    action: str,
    save: Callable[[], object],
    **details: Any,
) -> None:
    """Save a preset and record the change; raises `Conflict` (`name_taken`)."""
    with record_change(**_build_audit_fields(principal, preset, action, details)):
        try:
            save()
        except IntegrityError:
            # The same name was saved after the check.
            raise build_name_conflict(preset.name) from None


def _build_audit_fields(
    principal: Principal, preset: Preset, action: str, details: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of `record_change`."""
    return {
        "organization_id": principal.organization_id,
        "actor": principal.actor,
        "action": action,
        "resource_type": "mcp_preset",
        "resource_id": str(preset.pk),
        "resource_name": preset.name,
        "details": details,
        "governed": False,
    }


def build_name_conflict(name: str) -> Conflict:
    return Conflict(
        format_message("A preset with a name like {name!r} already exists.", name=name),
        code="name_taken",
        field="name",
        remedy="Choose another name.",
    )


def get_preset(principal: Principal, slug: str, *, field: str = "preset") -> Preset:
    """Return the preset with this slug for the principal's organization; raises `NotFound`."""
    preset: Preset | None = Preset.objects.find_by_slug(principal.organization_id, slug)
    if preset is None:
        raise NotFound(
            format_message("The preset {slug!r} doesn't exist.", slug=slug),
            field=field,
            remedy="Choose a listed preset. To list presets, run `bonobot mcp presets`.",
        )
    return preset


def build_server_spec(
    principal: Principal,
    preset: Preset,
    values: Mapping[str, str],
    *,
    name: str = "",
    **common: Any,
) -> ServerSpec:
    """Return the server specification for a preset in the principal's organization.

    Raises as `fill_preset`, and for programs as `resolve_folders` and `check_enabled`.
    """
    check_enabled(principal, preset)
    spec = fill_preset(preset, values, name=name, **common)
    if preset.transport_type != Server.Transport.STDIO:
        return spec
    resolved_values = resolve_folders(principal.organization_id, preset.parameters, values)
    return fill_preset(preset, resolved_values, name=name, **common)


def link_preset(principal: Principal, server: Server, slug: str) -> None:
    """Record that a server was configured from a preset, whose labels then apply to it.

    Only a platform administrator can, because the configuration may differ from the preset's; for
    others, and for an unknown preset or one of another transport, nothing happens.
    """
    if not slug or not principal.platform_admin:
        return
    preset = Preset.objects.find_by_slug(principal.organization_id, slug)
    if preset is not None and preset.transport_type == server.transport_type:
        update_server_columns(principal, server, "server_updated", {"preset_id": str(preset.pk)})
