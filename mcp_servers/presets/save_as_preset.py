"""Save a server as a preset of the organization."""

import re
from typing import Any

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import Forbidden, InvalidInput, NotFound
from mcp_servers.models import Preset, Secret, Server
from mcp_servers.presets.services import SECRET_FIELDS, build_name_conflict, record_preset_change
from mcp_servers.server_names import check_name, slugify
from mcp_servers.stdio_validation import check_no_dangerous_variables


def build_preset(principal: Principal, server: Server, name: str) -> Preset:
    """Return an unsaved preset built from a server, for the preview.

    Each secret becomes a required secret parameter without its value. Raises `Forbidden`
    (`platform_admin_only`, for programs) and `NotFound`.
    """
    principal.require(Action.MANAGE_SERVERS)
    _check_can_save(principal, server)
    endpoint: dict[str, Any] = dict(server.endpoint_config)
    auth: dict[str, Any] = dict(server.auth_config)
    parameters: list[dict[str, Any]] = []
    for secret in sorted(server.secrets.all(), key=lambda item: (item.placement, item.name)):
        parameter = _build_secret_parameter(secret, {item["name"] for item in parameters})
        parameters.append(parameter)
        reference = f"${{{parameter['name']}}}"
        if secret.placement == Secret.Placement.AUTH:
            auth[secret.name] = reference
        else:
            field_name = SECRET_FIELDS[secret.placement]
            endpoint[field_name] = {**endpoint.get(field_name, {}), secret.name: reference}
    return Preset(
        organization_id=principal.organization_id,
        slug=slugify(name).replace("_", "-"),
        name=name.strip(),
        description=server.description,
        category="own",
        transport_type=server.transport_type,
        sandbox=server.sandbox,
        network=server.network,
        endpoint_config=endpoint,
        auth_type=server.auth_type,
        auth_config=auth,
        parameters=parameters,
        proof={"kind": "server", "server": server.name},
    )


def save_as_preset(principal: Principal, server: Server, name: str) -> Preset:
    """Create a preset in the principal's organization from the server's public configuration.

    Raises as `build_preset`, `Conflict` (`name_taken`) and problems of the name.
    """
    preset = build_preset(principal, server, name)
    check_name(name)
    if Preset.objects.filter(organization_id=principal.organization_id, slug=preset.slug).exists():
        raise build_name_conflict(name)
    record_preset_change(principal, preset, "preset_saved", preset.save, server=server.name)
    return preset


def _check_can_save(principal: Principal, server: Server) -> None:
    """Raise if only a platform administrator may save this server as a preset."""
    if server.organization_id != principal.organization_id:
        raise NotFound("The server doesn't exist.", field="server")
    if server.transport_type == Server.Transport.STDIO and not principal.platform_admin:
        # Everyone who may create servers can start a preset's command.
        raise Forbidden(
            "Only a platform administrator can create a preset that starts a program.",
            code="platform_admin_only",
            field="server",
            rule="stdio",
            remedy="Ask a platform administrator to save it.",
        )
    if server.transport_type == Server.Transport.STDIO:
        names = [
            secret.name
            for secret in server.secrets.all()
            if secret.placement == Secret.Placement.ENV
        ]
        check_no_dangerous_variables(names)
    _check_has_document_url(server)


def _check_has_document_url(server: Server) -> None:
    """Raise `InvalidInput` if an API's document has no URL."""
    if not server.speaks_mcp and not server.endpoint_config.get("document_url"):
        raise InvalidInput(
            "A preset for an API requires the URL of its OpenAPI document.",
            code="document_url_missing",
            field="server",
            remedy="Set the server's OpenAPI document URL first.",
        )


def _build_secret_parameter(secret: Secret, used_names: set[str]) -> dict[str, Any]:
    base_name = re.sub(r"[^A-Z0-9]+", "_", secret.name.upper()).strip("_") or "SECRET"
    if not base_name[0].isalpha():
        base_name = f"SECRET_{base_name}"
    name, number = base_name, 2
    while name in used_names:
        name, number = f"{base_name}_{number}", number + 1
    return {
        "name": name,
        "label": secret.name,
        "secret": True,
        "required": True,
        "default": "",
        "help": "",
    }
