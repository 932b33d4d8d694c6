"""Models of servers, definitions, presets, health, OAuth, subscriptions and bulk jobs."""

from mcp_servers.models.bulk_jobs import Round, Stop
from mcp_servers.models.definitions import Definition
from mcp_servers.models.health import Check, ErrorOutput, Outage, Unasked
from mcp_servers.models.oauth import OAuthClient, OAuthGrant, OAuthLogin
from mcp_servers.models.presets import Preset
from mcp_servers.models.servers import ApiDocument, Launcher, Secret, Server
from mcp_servers.models.subscriptions import Followed, Watch

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
