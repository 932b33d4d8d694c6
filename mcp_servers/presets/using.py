"""Make a server's specification of a preset: the one way for every surface."""

from collections.abc import Mapping
from typing import Any

from bonobot.lib.problems import NotFound
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from mcp_servers.configuration import ServerSpec
from mcp_servers.models import Preset, Server
from mcp_servers.presets.availability import check_enabled
from mcp_servers.presets.catalogue import fill
from mcp_servers.presets.folders import settled


def preset_named(principal: Principal, slug: str, *, field: str = "preset") -> Preset:
    """Return the preset that a slug means to the principal's organization; raises `NotFound`."""
    found: Preset | None = Preset.objects.named(principal.organization_id, slug)
    if found is None:
        raise NotFound(
            say("There is no preset {slug!r} here.", slug=slug),
            field=field,
            remedy="Choose one of those that are listed; `bonobot mcp presets` shows them, too.",
        )
    return found


def spec_from(
    principal: Principal,
    preset: Preset,
    values: Mapping[str, str],
    *,
    name: str = "",
    **common: Any,
) -> ServerSpec:
    """Return the server that the values make of a preset in the principal's organization.

    Raises the problems of `catalogue.fill`, and for programs those of `folders.settled` and
    `availability.check_enabled`.
    """
    check_enabled(principal, preset)
    spec = fill(preset, values, name=name, **common)
    if preset.transport_type != Server.Transport.STDIO:
        return spec
    real = settled(principal.organization_id, preset.parameters, values)
    return fill(preset, real, name=name, **common)
