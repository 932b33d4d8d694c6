"""Models of servers, definitions, presets, imports, health, OAuth, subscriptions and bulk jobs."""

from mcp_servers.models.bulk_jobs import BulkJob, BulkJobItem
from mcp_servers.models.bundles import ServerBundle
from mcp_servers.models.definitions import Definition
from mcp_servers.models.health import ErrorOutput, HealthCheck, Outage, UnmonitoredPeriod
from mcp_servers.models.import_drafts import ImportDraft
from mcp_servers.models.launchers import Launcher
from mcp_servers.models.oauth import OAuthClient, OAuthGrant, OAuthLogin
from mcp_servers.models.presets import Preset
from mcp_servers.models.servers import ApiDocument, Secret, Server
from mcp_servers.models.subscriptions import ChangeSubscription, ResourceSubscription

__all__ = [
    "ApiDocument",
    "BulkJob",
    "BulkJobItem",
    "ChangeSubscription",
    "Definition",
    "ErrorOutput",
    "HealthCheck",
    "ImportDraft",
    "Launcher",
    "OAuthClient",
    "OAuthGrant",
    "OAuthLogin",
    "Outage",
    "Preset",
    "ResourceSubscription",
    "Secret",
    "Server",
    "ServerBundle",
    "UnmonitoredPeriod",
]
