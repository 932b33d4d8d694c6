"""The command groups (`bonobot mcp`, `bonobot agents`, …): their help and their verbs.

A group's verbs are tuples of `CommandVerb`, given as `module:TUPLE` and imported when the group is
used, so that `bonobot mcp list` imports only what `mcp` needs. A group may use tuples of several
packages.

Django finds commands in the mapping of `get_commands()` and loads them as the module
`<app>.management.commands.<name>`. `register_command_groups` adds the groups to both, so that
`call_command` and `--help` work with them. Other commands are files in `management/commands`.
"""

import sys
from dataclasses import dataclass
from types import ModuleType

from django.core.management import get_commands
from django.core.management.base import BaseCommand

APP = "bonobot"


@dataclass(frozen=True)
class GroupEntry:
    """A command group: its help, and its verbs as `module:TUPLE` in order."""

    help: str
    verbs: tuple[str, ...]


class CommandModule(ModuleType):
    """The module of a group's command; creates `Command` on first access."""

    def __init__(self, name: str, entry: GroupEntry) -> None:
        super().__init__(f"{APP}.management.commands.{name}", entry.help)
        self._entry = entry

    def __getattr__(self, name: str) -> type[BaseCommand]:
        if name != "Command":
            raise AttributeError(name)
        from bonobot.core.cli.command_group import CommandGroup  # web and workers don't need it

        attributes = {"help": self._entry.help, "verb_sources": self._entry.verbs}
        self.Command = type(name, (CommandGroup,), attributes)
        return self.Command


COMMAND_GROUPS = {
    "agents": GroupEntry(
        "Manage and run agents, their tools, policies, sessions, and recordings",
        (
            "agents.cli.agents:VERBS",
            "agents.cli.agents:CALLABLE_AGENT_VERBS",
            "agents.cli.tools:WORKSPACE_VERBS",
            "agents.cli.sessions:VERBS",
            "agents.cli.sessions:SESSION_APPROVAL_VERBS",
            "agents.cli.flow_labels:OF_AGENTS",
            "agents.cli.store_labels:OF_AGENTS",
            "agents.cli.recordings:VERBS",
        ),
    ),
    "approvals": GroupEntry(
        "List, show, approve, and deny pending approvals",
        ("agents.cli.approvals:VERBS",),
    ),
    "audit": GroupEntry(
        "List, verify, export, and prune the audit log",
        ("bonobot.ledger.cli.audit:VERBS", "agents.cli.policy_simulations:AUDIT_VERBS"),
    ),
    "budgets": GroupEntry(
        "Show and set budgets of organizations, agents, sessions, and servers",
        ("agents.cli.budgets:VERBS",),
    ),
    "first-run": GroupEntry(
        "Show the first steps of an organization: completed, skipped, or hidden",
        ("agents.console.cli:VERBS",),
    ),
    "issuers": GroupEntry(
        "Manage external issuers whose tokens are accepted over MCP",
        ("bonobot.accounts.cli.external_issuers:VERBS",),
    ),
    "keys": GroupEntry(
        "Show and rotate the keys of encrypted values",
        ("bonobot.maintenance.cli:VERBS",),
    ),
    "mcp": GroupEntry(
        "Manage MCP servers: add, discover, review, call, enable, and disable them",
        (
            "mcp_servers.cli.servers:VERBS",
            "mcp_servers.cli.server_detail:VERBS",
            "mcp_servers.cli.openapi:VERBS",
            "mcp_servers.cli.definitions:VERBS",
            "agents.cli.store_labels:OF_SERVERS",
            "agents.cli.budgets:PRICING",
            "agents.cli.agent_servers:VERBS",
            "mcp_servers.cli.history:VERBS",
            "agents.cli.server_calls:VERBS",
            "mcp_servers.cli.history:LOG_VERBS",
            "mcp_servers.cli.oauth_logins:VERBS",
            "agents.cli.server_imports:VERBS",
            "agents.config_file.cli:VERBS",
            "mcp_servers.cli.presets:VERBS",
            "mcp_servers.cli.launchers:VERBS",
            "agents.gateway.cli:SERVE_VERBS",
            "agents.gateway.cli:SNIPPET_VERBS",
        ),
    ),
    "members": GroupEntry(
        "Manage members and invitations of an organization",
        ("bonobot.accounts.cli.members:VERBS",),
    ),
    "models": GroupEntry(
        "Manage the model endpoints of agents",
        ("agents.cli.model_endpoints:VERBS",),
    ),
    "notes": GroupEntry(
        "Read, write, and delete notes of agents",
        ("agents.cli.notes:VERBS",),
    ),
    "notifications": GroupEntry(
        "Manage notification channels, and show and retry notifications",
        (
            "bonobot.notifications.cli:VERBS",
            "bonobot.notifications.cli:CHANNEL_VERBS",
        ),
    ),
    "org": GroupEntry(
        "Manage the organization and its kill switch",
        ("agents.cli.organization:VERBS",),
    ),
    "elicitations": GroupEntry(
        "List, show, and answer elicitation requests of servers",
        ("agents.cli.elicitations:VERBS",),
    ),
    "skills": GroupEntry(
        "Create, show, and run skills: named instructions with arguments",
        ("agents.cli.skills:VERBS",),
    ),
    "sso": GroupEntry(
        "Manage OpenID Connect identity providers",
        ("bonobot.accounts.cli.identity_providers:VERBS",),
    ),
    "tokens": GroupEntry(
        "Manage tokens",
        (
            "bonobot.accounts.cli.tokens:VERBS",
            "agents.cli.flow_labels:OF_TOKENS",
        ),
    ),
    "tools": GroupEntry(
        "List the tools of servers and built-in tools",
        ("agents.cli.tools:VERBS",),
    ),
    "usage": GroupEntry(
        "Show calls, tokens, and cost",
        ("bonobot.ledger.cli.usage:VERBS",),
    ),
    "workflows": GroupEntry(
        "Create, run, and show workflows: sequences of calls and messages to agents",
        ("agents.cli.workflows:VERBS",),
    ),
}


def register_command_groups() -> None:
    """Add the groups to Django's commands in this process."""
    commands = get_commands()
    for name, entry in COMMAND_GROUPS.items():
        module = CommandModule(name, entry)
        sys.modules[module.__name__] = module
        commands[name] = APP
