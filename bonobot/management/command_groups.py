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
        "List, make, run, and decide what they may call.",
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
        "Calls that wait for a person: list, show, approve, deny.",
        ("agents.cli.approvals:VERBS",),
    ),
    "audit": GroupEntry(
        "What happened, and whether the record is whole.",
        ("bonobot.ledger.cli.audit:VERBS", "agents.cli.policy_simulations:AUDIT_VERBS"),
    ),
    "budgets": GroupEntry(
        "Show and set what organizations, agents, sessions and servers may spend.",
        ("agents.cli.budgets:VERBS",),
    ),
    "first-run": GroupEntry(
        "The first steps of an organization: which are done, skipped or hidden.",
        ("agents.console.cli:VERBS",),
    ),
    "issuers": GroupEntry(
        "Whose tokens are taken over MCP, beside our own.",
        ("bonobot.accounts.cli.external_issuers:VERBS",),
    ),
    "keys": GroupEntry(
        "The keys of sealed values: which seals what, and a new one while everything runs.",
        ("bonobot.maintenance.cli:VERBS",),
    ),
    "mcp": GroupEntry(
        "Register, read, approve, try and switch MCP servers.",
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
        "Who belongs to an organization, and who is asked to.",
        ("bonobot.accounts.cli.members:VERBS",),
    ),
    "models": GroupEntry(
        "Model endpoints: where agents think.",
        ("agents.cli.model_endpoints:VERBS",),
    ),
    "notes": GroupEntry(
        "Read, write and remove the notes that agents keep.",
        ("agents.cli.notes:VERBS",),
    ),
    "notices": GroupEntry(
        "What people are told by e-mail and webhook, and whether it arrived.",
        (
            "bonobot.notifications.cli:VERBS",
            "bonobot.notifications.cli:CHANNEL_VERBS",
        ),
    ),
    "org": GroupEntry(
        "The organization, and the switch that stops everything in it.",
        ("agents.cli.organization:VERBS",),
    ),
    "questions": GroupEntry(
        "What servers ask the people who run sessions: list, show, answer.",
        ("agents.cli.elicitations:VERBS",),
    ),
    "skills": GroupEntry(
        "Write, show and run skills: named instructions with arguments.",
        ("agents.cli.skills:VERBS",),
    ),
    "sso": GroupEntry(
        "Identity providers that people sign in by (OpenID Connect).",
        ("bonobot.accounts.cli.identity_providers:VERBS",),
    ),
    "tokens": GroupEntry(
        "Keys for programs.",
        (
            "bonobot.accounts.cli.tokens:VERBS",
            "agents.cli.flow_labels:OF_TOKENS",
        ),
    ),
    "tools": GroupEntry(
        "What servers offer, and what is built in.",
        ("agents.cli.tools:VERBS",),
    ),
    "usage": GroupEntry(
        "What was called, and what it cost.",
        ("bonobot.ledger.cli.usage:VERBS",),
    ),
    "workflows": GroupEntry(
        "Write, run and look at workflows: sequences of calls and questions to agents.",
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
