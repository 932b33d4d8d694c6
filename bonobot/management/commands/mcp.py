"""`bonobot mcp`: MCP servers."""

from typing import ClassVar

from agents.cli import agent_servers, budgets, server_calls, server_imports, store_labels
from agents.config_file import cli as config_file_cli
from agents.gateway import cli as gateway_cli
from bonobot.core.cli.command_group import CommandGroup
from mcp_servers.cli import definitions as cli_definitions
from mcp_servers.cli import (
    history,
    launchers,
    oauth_logins,
    openapi,
    presets,
    server_detail,
    servers,
)


class Command(CommandGroup):
    help = "Register, read, approve, try and switch MCP servers."
    verbs: ClassVar = (
        *servers.VERBS,
        *server_detail.VERBS,
        *openapi.VERBS,
        *cli_definitions.VERBS,
        *store_labels.OF_SERVERS,
        *budgets.PRICING,
        *agent_servers.VERBS,
        *history.VERBS,
        *server_calls.VERBS,
        *history.LOG_VERBS,
        *oauth_logins.VERBS,
        *server_imports.VERBS,
        *config_file_cli.VERBS,
        *presets.VERBS,
        *launchers.VERBS,
        *gateway_cli.SERVE_VERBS,
        *gateway_cli.SNIPPET_VERBS,
    )
