"""Export: servers as a file that other clients and Bonobot itself read, without any secret.

Where a secret is, the file has `${NAME}`: who uses the file gives the value in their environment.
"""

import re
from collections.abc import Iterable
from typing import Any

from mcp_servers.asked_back import chosen
from mcp_servers.configuration import shown_endpoint
from mcp_servers.confining import Box, usual_box
from mcp_servers.models import Secret, Server
from mcp_servers.openapi.documents import document_of
from mcp_servers.placeholders import references
from mcp_servers.pricing import PRICED

_MEMBERS = {Secret.Placement.ENV: "env", Secret.Placement.HEADER: "headers"}


class Names:
    """Names for the secrets of one file: each used once, none of them Bonobot's own."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def placeholder(self, owner: str, name: str) -> str:
        """Return `${OWNER_NAME}`, with a number where another secret is called so already."""
        plain = re.sub(r"[^A-Z0-9]+", "_", f"{owner}_{name}".upper()).strip("_")
        if not plain[:1].isalpha() or any(r.forbidden for r in references(f"${{{plain}}}")):
            plain = f"MCP_{plain}"
        chosen, number = plain, 2
        while chosen in self._used:
            chosen, number = f"{plain}_{number}", number + 1
        self._used.add(chosen)
        return f"${{{chosen}}}"


def as_client_file(servers: Iterable[Server]) -> dict[str, Any]:
    """Return servers in the words of MCP clients: `{"mcpServers": {name: {…}}}`.

    A sign-in becomes the header that it sends; OAuth, for which there is none, is left out, and so
    are APIs.
    """
    names = Names()
    # Clients speak MCP: an API is none of their servers.
    found = {server.name: _for_clients(server, names) for server in servers if server.speaks_mcp}
    return {"mcpServers": found}


def described(server: Server, names: Names) -> dict[str, Any]:
    """Return everything that is configured of a server, in the members that an import reads."""
    found: dict[str, Any] = {"transport_type": server.transport_type, **_endpoint(server, names)}
    if "declared" in found:
        del found["operations"]  # they follow from it
    elif not server.speaks_mcp and not server.endpoint_config.get("document_url"):
        row = document_of(server)
        found["document"] = row.text if row else ""
    if server.auth_type != Server.Auth.NONE:
        secrets = {s.name: names.placeholder(server.slug, s.name) for s in _credentials(server)}
        found["auth_config"] = {"type": server.auth_type, **server.auth_config, **secrets}
    found["enabled"] = server.enabled
    found["approval"] = server.approval
    if server.allow_private:
        found["allow_private"] = True
    if (
        server.transport_type == Server.Transport.STDIO
        and Box(server.confinement, server.network) != usual_box()
    ):
        found |= {"confinement": server.confinement, "network": server.network}
    if server.env_exceptions:
        found["env_exceptions"] = server.env_exceptions
    found |= {name: getattr(server, name) for name in PRICED if getattr(server, name)}
    found |= chosen(server)
    if server.description:
        found["description"] = server.description
    return found | _kept_to(server)


def _endpoint(server: Server, names: Names) -> dict[str, Any]:
    endpoint = shown_endpoint(server)
    for member in _MEMBERS.values():
        if member in endpoint:
            endpoint[member] = {
                name: names.placeholder(server.slug, name) for name in endpoint[member]
            }
    return endpoint


def _for_clients(server: Server, names: Names) -> dict[str, Any]:
    found = _endpoint(server, names)
    if server.transport_type == Server.Transport.HTTP:
        found = {"type": "http", **found}
        if header := _signing_header(server, names):
            found.setdefault("headers", {}).update(header)
    if not server.enabled:
        found["disabled"] = True
    return found | _kept_to(server)


def _kept_to(server: Server) -> dict[str, Any]:
    return {"allowed_tools": server.only_tools} if server.only_tools else {}


def _signing_header(server: Server, names: Names) -> dict[str, str]:
    if server.auth_type == Server.Auth.BEARER:
        return {"Authorization": f"Bearer {names.placeholder(server.slug, 'token')}"}
    if server.auth_type == Server.Auth.API_KEY:
        return {str(server.auth_config["header"]): names.placeholder(server.slug, "key")}
    return {}


def _credentials(server: Server) -> list[Secret]:
    found = [s for s in server.secrets.all() if s.placement == Secret.Placement.AUTH]
    return sorted(found, key=lambda secret: secret.name)
