"""Build server specifications from presets."""

from collections.abc import Mapping
from typing import Any

from bonobot.accounts.principals import Principal
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from mcp_servers.audit import update_server_columns
from mcp_servers.models import Preset, Server
from mcp_servers.presets.allowed_folders import resolve_folders
from mcp_servers.presets.availability import check_enabled
from mcp_servers.presets.catalog import fill_preset
from mcp_servers.server_config import ServerSpec


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
