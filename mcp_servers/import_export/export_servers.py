"""Export servers in the clients' format, without secrets.

Secrets are replaced by `${NAME}`, to be set in the environment.
"""

import re
from collections.abc import Iterable
from typing import Any

from bonobot.core.text.placeholders import list_placeholders
from mcp_servers.client_capabilities import get_custom_settings
from mcp_servers.models import Secret, Server
from mcp_servers.models.servers import find_document
from mcp_servers.server_config import PRICED, SandboxConfig, mask_endpoint_config, usual_box

_MEMBERS = {Secret.Placement.ENV: "env", Secret.Placement.HEADER: "headers"}


class SecretPlaceholders:
    """Unique names for the secrets of one file; none is a variable of Bonobot."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def placeholder(self, owner: str, name: str) -> str:
        """Return `${OWNER_NAME}`, with a number if that name is used already."""
        plain = re.sub(r"[^A-Z0-9]+", "_", f"{owner}_{name}".upper()).strip("_")
        if not plain[:1].isalpha() or any(r.forbidden for r in list_placeholders(f"${{{plain}}}")):
            plain = f"MCP_{plain}"
        chosen, number = plain, 2
        while chosen in self._used:
            chosen, number = f"{plain}_{number}", number + 1
        self._used.add(chosen)
        return f"${{{chosen}}}"


def as_client_file(servers: Iterable[Server]) -> dict[str, Any]:
    """Return servers in the format of MCP clients: `{"mcpServers": {name: {…}}}`.

    A sign-in becomes the header that it sends; OAuth sign-ins and APIs are omitted.
    """
    names = SecretPlaceholders()
    # Clients only support MCP servers.
    found = {
        server.name: _build_client_config(server, names) for server in servers if server.speaks_mcp
    }
    return {"mcpServers": found}


def export_server(server: Server, names: SecretPlaceholders) -> dict[str, Any]:
    """Return a server's whole configuration in the fields that an import reads."""
    found: dict[str, Any] = {
        "transport_type": server.transport_type,
        **_build_endpoint_config(server, names),
    }
    if "declared" in found:
        del found["operations"]  # they follow from it
    elif not server.speaks_mcp and not server.endpoint_config.get("document_url"):
        row = find_document(server)
        found["document"] = row.text if row else ""
    if server.auth_type != Server.Auth.NONE:
        secrets = {
            s.name: names.placeholder(server.slug, s.name) for s in _list_auth_secrets(server)
        }
        found["auth_config"] = {"type": server.auth_type, **server.auth_config, **secrets}
    found["enabled"] = server.enabled
    found["approval"] = server.approval
    if server.allow_private:
        found["allow_private"] = True
    if (
        server.transport_type == Server.Transport.STDIO
        and SandboxConfig(server.confinement, server.network) != usual_box()
    ):
        found |= {"confinement": server.confinement, "network": server.network}
    if server.env_exceptions:
        found["env_exceptions"] = server.env_exceptions
    found |= {name: getattr(server, name) for name in PRICED if getattr(server, name)}
    found |= get_custom_settings(server)
    if server.description:
        found["description"] = server.description
    return found | _build_tool_filter(server)


def _build_endpoint_config(server: Server, names: SecretPlaceholders) -> dict[str, Any]:
    endpoint = mask_endpoint_config(server)
    for member in _MEMBERS.values():
        if member in endpoint:
            endpoint[member] = {
                name: names.placeholder(server.slug, name) for name in endpoint[member]
            }
    return endpoint


def _build_client_config(server: Server, names: SecretPlaceholders) -> dict[str, Any]:
    found = _build_endpoint_config(server, names)
    if server.transport_type == Server.Transport.HTTP:
        found = {"type": "http", **found}
        if header := _build_auth_header(server, names):
            found.setdefault("headers", {}).update(header)
    if not server.enabled:
        found["disabled"] = True
    return found | _build_tool_filter(server)


def _build_tool_filter(server: Server) -> dict[str, Any]:
    return {"allowed_tools": server.only_tools} if server.only_tools else {}


def _build_auth_header(server: Server, names: SecretPlaceholders) -> dict[str, str]:
    if server.auth_type == Server.Auth.BEARER:
        return {"Authorization": f"Bearer {names.placeholder(server.slug, 'token')}"}
    if server.auth_type == Server.Auth.API_KEY:
        return {str(server.auth_config["header"]): names.placeholder(server.slug, "key")}
    return {}


def _list_auth_secrets(server: Server) -> list[Secret]:
    found = [s for s in server.secrets.all() if s.placement == Secret.Placement.AUTH]
    return sorted(found, key=lambda secret: secret.name)
