"""Save a server as the organization's own preset: what is sealed becomes a parameter to fill."""

import re
from typing import Any

from bonobot.lib.problems import Forbidden, Invalid, NotFound
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.models import Preset, Secret, Server
from mcp_servers.naming import check_name, slugify
from mcp_servers.presets.own import name_taken, recorded
from mcp_servers.process_rules import check_no_dangerous_variables

MEMBERS: dict[str, str] = {Secret.Placement.ENV: "env", Secret.Placement.HEADER: "headers"}


def preset_of(principal: Principal, server: Server, name: str) -> Preset:
    """Return the preset that a server would make, not saved: what a person sees before they do.

    Values of secrets never enter it: each becomes a required secret parameter. Raises `Forbidden`
    (`platform_admin_only`, for programs) and `NotFound`.
    """
    principal.require(Action.MANAGE_SERVERS)
    _may_save(principal, server)
    endpoint: dict[str, Any] = dict(server.endpoint_config)
    auth: dict[str, Any] = dict(server.auth_config)
    parameters: list[dict[str, Any]] = []
    for secret in sorted(server.secrets.all(), key=lambda each: (each.placement, each.name)):
        parameter = _parameter(secret, {each["name"] for each in parameters})
        parameters.append(parameter)
        reference = f"${{{parameter['name']}}}"
        if secret.placement == Secret.Placement.AUTH:
            auth[secret.name] = reference
        else:
            member = MEMBERS[secret.placement]
            endpoint[member] = {**endpoint.get(member, {}), secret.name: reference}
    return Preset(
        organization_id=principal.organization_id,
        slug=slugify(name).replace("_", "-"),
        name=name.strip(),
        description=server.description,
        category="own",
        transport_type=server.transport_type,
        confinement=server.confinement,
        network=server.network,
        endpoint_config=endpoint,
        auth_type=server.auth_type,
        auth_config=auth,
        parameters=parameters,
        proof={"kind": "server", "server": server.name},
    )


def save_as_preset(principal: Principal, server: Server, name: str) -> Preset:
    """Return a new preset of the principal's organization with the server's public configuration.

    Raises the problems of `preset_of`, `Conflict` (`name_taken`) and problems of the name.
    """
    preset = preset_of(principal, server, name)
    check_name(name)
    if Preset.objects.filter(organization_id=principal.organization_id, slug=preset.slug).exists():
        raise name_taken(name)
    recorded(principal, preset, "preset_saved", preset.save, server=server.name)
    return preset


def _may_save(principal: Principal, server: Server) -> None:
    """Raise where a preset would hand on what only a platform administrator may give."""
    if server.organization_id != principal.organization_id:
        raise NotFound("There is no such server.", field="server")
    if server.transport_type == Server.Transport.STDIO and not principal.platform_admin:
        # Whoever may add servers may start a preset's command: it needs who may set a command.
        raise Forbidden(
            "Only a platform administrator may make a preset that starts a program.",
            code="platform_admin_only",
            field="server",
            rule="stdio",
            remedy="Ask a platform administrator to save it.",
        )
    if server.transport_type == Server.Transport.STDIO:
        names = [one.name for one in server.secrets.all() if one.placement == Secret.Placement.ENV]
        check_no_dangerous_variables(names, field="endpoint_config.env")
    _has_address(server)


def _has_address(server: Server) -> None:
    """Raise where an API's document is known to this server alone."""
    if not server.speaks_mcp and not server.endpoint_config.get("document_url"):
        raise Invalid(
            "A preset of an API needs its document's address.",
            code="document_url_missing",
            field="server",
            remedy="Give the server its document's address first.",
        )


def _parameter(secret: Secret, taken: set[str]) -> dict[str, Any]:
    """Return the parameter that stands for a secret, under a name of its own."""
    wanted = re.sub(r"[^A-Z0-9]+", "_", secret.name.upper()).strip("_") or "SECRET"
    if not wanted[0].isalpha():
        wanted = f"SECRET_{wanted}"
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return {
        "name": name,
        "label": secret.name,
        "secret": True,
        "required": True,
        "default": "",
        "help": "",
    }
