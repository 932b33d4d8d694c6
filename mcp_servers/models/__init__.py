"""Rows of the registry: servers and their secrets, definitions, presets, checks, OAuth grants."""

from mcp_servers.models.checks import Check
from mcp_servers.models.definitions import Definition
from mcp_servers.models.grants import OAuthClient, OAuthGrant, OAuthLogin
from mcp_servers.models.launchers import Launcher
from mcp_servers.models.presets import Preset
from mcp_servers.models.servers import Secret, Server

__all__ = [
    "Check",
    "Definition",
    "Launcher",
    "OAuthClient",
    "OAuthGrant",
    "OAuthLogin",
    "Preset",
    "Secret",
    "Server",
]
