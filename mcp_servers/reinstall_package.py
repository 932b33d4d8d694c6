"""State and reinstallation of the packages of `npx` and `uvx` servers.

This concerns the current host: each host installs what it starts.
"""

import logging
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import Problem
from mcp_servers.audit import record_server_change
from mcp_servers.models import Server

if TYPE_CHECKING:
    from mcp_servers.client.package_installation import Installation

logger = logging.getLogger(__name__)


def find_server_installation(server: Server) -> dict[str, Any] | None:
    """Return `state` and `detail` of a server's package; None if it has none."""
    from mcp_servers.build_endpoint import build_endpoint
    from mcp_servers.client.package_installation import find_installation

    if server.transport_type != Server.Transport.STDIO:
        return None
    try:
        installation = find_installation(build_endpoint(server))
    except Problem:  # a secret that can't be decrypted is reported elsewhere
        return None
    return asdict(installation) if installation else None


async def reinstall_package(principal: Principal, server: Server) -> "Installation | None":
    """Reinstall a server's package and wait for it; return None if it has none.

    Raises `UpstreamError` (`installation_failed`).
    """
    from bonobot.core.runtime import get_runtime
    from mcp_servers.build_endpoint import build_endpoint
    from mcp_servers.client.package_installation import find_installation
    from mcp_servers.client.package_installation import install_package as installed

    principal.require(Action.MANAGE_SERVERS)
    orm = get_runtime().run_background_orm
    endpoint = replace(
        await orm(build_endpoint, server), install_wait_s=float(settings.BONOBOT_INSTALL_S)
    )
    if find_installation(endpoint) is None:
        return None
    await orm(_record_installation, principal, server)
    await installed(endpoint, reinstall=True)
    return find_installation(endpoint)


def _record_installation(principal: Principal, server: Server) -> None:
    with record_server_change(server, principal.actor, "server_installed", governed=False):
        pass


def discover_after_installation(server_id: UUID) -> None:
    """Start the discovery of a server whose installation ended too late for its start.

    If it failed, this records why.
    """
    from bonobot.core.runtime import get_runtime

    get_runtime().spawn(
        _run_discovery(server_id), name=f"discover {server_id} after its installation"
    )


async def _run_discovery(server_id: UUID) -> None:
    from mcp_servers.discovery import run_discovery
    from mcp_servers.health.check_servers import SYSTEM

    try:
        await run_discovery(server_id, actor=SYSTEM)
    except Problem as problem:
        logger.warning("discovery of server %s failed: %s", server_id, problem.code)
