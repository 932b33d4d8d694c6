"""State and reinstallation of the packages of `npx` and `uvx` servers.

This concerns the current host: each host installs what it starts.
"""

import logging
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID

from django.conf import settings

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.audit import record_server_change
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.package_installation import Installation, installation_of
from mcp_servers.client.package_installation import install_package as installed
from mcp_servers.discovery import discover
from mcp_servers.health.check_servers import SYSTEM
from mcp_servers.models import Server

logger = logging.getLogger(__name__)


def installation_of_server(server: Server) -> dict[str, Any] | None:
    """Return `state` and `detail` of a server's package; None if it has none."""
    if server.transport_type != Server.Transport.STDIO:
        return None
    try:
        found = installation_of(build_endpoint(server))
    except Problem:  # a secret that can't be decrypted is reported elsewhere
        return None
    return asdict(found) if found else None


async def install_package(principal: Principal, server: Server) -> Installation | None:
    """Reinstall a server's package and wait for it; return None if it has none.

    Raises `UpstreamError` (`installation_failed`).
    """
    principal.require(Action.MANAGE_SERVERS)
    orm = get_runtime().aside
    endpoint = replace(
        await orm(build_endpoint, server), patience_s=float(settings.BONOBOT_INSTALL_S)
    )
    if installation_of(endpoint) is None:
        return None
    await orm(_record, principal, server)
    await installed(endpoint, anew=True)
    return installation_of(endpoint)


def _record(principal: Principal, server: Server) -> None:
    with record_server_change(server, principal.actor, "server_installed", governed=False):
        pass


def discover_late(server_id: UUID) -> None:
    """Start the discovery of a server whose package was installed too late for its start."""
    get_runtime().spawn(_discover(server_id), name=f"discover {server_id} after its installation")


async def _discover(server_id: UUID) -> None:
    try:
        await discover(server_id, actor=SYSTEM)
    except Problem as problem:
        logger.warning("discovery of server %s failed: %s", server_id, problem.code)
