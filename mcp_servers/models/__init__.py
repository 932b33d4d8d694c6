"""Rows of the registry: servers, secrets, definitions, presets, health, grants, watches, rounds."""

from mcp_servers.models.checks import Check, ErrorOutput
from mcp_servers.models.definitions import Definition
from mcp_servers.models.documents import ApiDocument
from mcp_servers.models.followed import Followed
from mcp_servers.models.grants import OAuthClient, OAuthGrant, OAuthLogin
from mcp_servers.models.launchers import Launcher
from mcp_servers.models.outages import Outage, Unasked
from mcp_servers.models.presets import Preset
from mcp_servers.models.rounds import Round, Stop
from mcp_servers.models.servers import Secret, Server
from mcp_servers.models.watches import Watch

__all__ = [
    "ApiDocument",
    "Check",
    "Definition",
    "ErrorOutput",
    "Followed",
    "Launcher",
    "OAuthClient",
    "OAuthGrant",
    "OAuthLogin",
    "Outage",
    "Preset",
    "Round",
    "Secret",
    "Server",
    "Stop",
    "Unasked",
    "Watch",
]
