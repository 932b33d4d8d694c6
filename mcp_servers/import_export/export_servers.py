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
from mcp_servers.sandbox_settings import SandboxConfig, get_default_sandbox
from mcp_servers.server_config import mask_endpoint_config
from mcp_servers.server_prices import PRICE_FIELDS

_SECRET_FIELDS = {Secret.Placement.ENV: "env", Secret.Placement.HEADER: "headers"}


class SecretPlaceholders:
    """Unique names for the secrets of one file; none is a variable of Bonobot."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def create_placeholder(self, owner: str, name: str) -> str:
        """Return `${OWNER_NAME}`, with a number if that name is used already."""
        base_name = re.sub(r"[^A-Z0-9]+", "_", f"{owner}_{name}".upper()).strip("_")
        if not base_name[:1].isalpha() or any(
            r.is_forbidden for r in list_placeholders(f"${{{base_name}}}")
        ):
            base_name = f"MCP_{base_name}"
        unique_name, number = base_name, 2
        while unique_name in self._used:
            unique_name, number = f"{base_name}_{number}", number + 1
        self._used.add(unique_name)
        return f"${{{unique_name}}}"


def build_client_file(servers: Iterable[Server]) -> dict[str, Any]:
    """Return servers in the format of MCP clients: `{"mcpServers": {name: {…}}}`.

    A sign-in becomes the header that it sends; OAuth sign-ins and APIs are omitted.
    """
    placeholders = SecretPlaceholders()
    # Clients only support MCP servers.
    configs = {
        server.name: _build_client_config(server, placeholders)
        for server in servers
        if server.speaks_mcp
    }
    return {"mcpServers": configs}


def export_server(server: Server, placeholders: SecretPlaceholders) -> dict[str, Any]:
    """Return a server's whole configuration in the fields that an import reads."""
    exported: dict[str, Any] = {
        "transport_type": server.transport_type,
        **_build_endpoint_config(server, placeholders),
    }
    if "declared" in exported:
        del exported["operations"]  # they follow from it
    elif not server.speaks_mcp and not server.endpoint_config.get("document_url"):
        document = find_document(server)
        exported["document"] = document.text if document else ""
    if server.auth_type != Server.Auth.NONE:
        secrets = {
            secret.name: placeholders.create_placeholder(server.slug, secret.name)
            for secret in _list_auth_secrets(server)
        }
        exported["auth_config"] = {"type": server.auth_type, **server.auth_config, **secrets}
    exported["enabled"] = server.enabled
    exported["approval"] = server.approval
    if server.allow_private:
        exported["allow_private"] = True
    if (
        server.transport_type == Server.Transport.STDIO
        and SandboxConfig(server.sandbox, server.network) != get_default_sandbox()
    ):
        exported |= {"sandbox": server.sandbox, "network": server.network}
    if server.env_exceptions:
        exported["env_exceptions"] = server.env_exceptions
    exported |= {name: getattr(server, name) for name in PRICE_FIELDS if getattr(server, name)}
    exported |= get_custom_settings(server)
    if server.description:
        exported["description"] = server.description
    return exported | _build_tool_filter(server)


def _build_endpoint_config(server: Server, placeholders: SecretPlaceholders) -> dict[str, Any]:
    endpoint = mask_endpoint_config(server)
    for field_name in _SECRET_FIELDS.values():
        if field_name in endpoint:
            endpoint[field_name] = {
                name: placeholders.create_placeholder(server.slug, name)
                for name in endpoint[field_name]
            }
    return endpoint


def _build_client_config(server: Server, placeholders: SecretPlaceholders) -> dict[str, Any]:
    config = _build_endpoint_config(server, placeholders)
    if server.transport_type == Server.Transport.HTTP:
        config = {"type": "http", **config}
        if header := _build_auth_header(server, placeholders):
            config.setdefault("headers", {}).update(header)
    if not server.enabled:
        config["disabled"] = True
    return config | _build_tool_filter(server)


def _build_tool_filter(server: Server) -> dict[str, Any]:
    return {"allowed_tools": server.only_tools} if server.only_tools else {}


def _build_auth_header(server: Server, placeholders: SecretPlaceholders) -> dict[str, str]:
    if server.auth_type == Server.Auth.BEARER:
        return {"Authorization": f"Bearer {placeholders.create_placeholder(server.slug, 'token')}"}
    if server.auth_type == Server.Auth.API_KEY:
        return {
            str(server.auth_config["header"]): placeholders.create_placeholder(server.slug, "key")
        }
    return {}


def _list_auth_secrets(server: Server) -> list[Secret]:
    secrets = [s for s in server.secrets.all() if s.placement == Secret.Placement.AUTH]
    return sorted(secrets, key=lambda secret: secret.name)
