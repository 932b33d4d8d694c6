"""The command groups (`bonobot mcp`, `bonobot agents`, …): their help and their verbs.

A group's verbs are tuples of `CommandVerb`, given as `module:TUPLE` with the names in it, so that
`bonobot mcp list` imports only the tuple that has `list`. A group may use tuples of several
packages.

Django finds commands in the mapping of `get_commands()` and loads them as the module
`<app>.management.commands.<name>`. `register_command_groups` adds the groups to both, so that
`call_command` and `--help` work with them. Other commands are files in `management/commands`.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from django.conf import settings
from django.core import management
from django.core.management import find_commands, get_commands
from django.core.management.base import BaseCommand

APP = "bonobot"
MANAGEMENT_FOLDER = management.__path__[0]
# The helps of the commands that are files in `management/commands`.
COMMAND_HELPS = {
    "backup": "Back up the database, workspaces, and signed checkpoints. Keys aren't included.",
    "beat": "Run the scheduler, which starts scheduled jobs. If several run, one is active.",
    "completion": "Print a shell completion script",
    "doctor": "Check this installation and suggest fixes. The exit status is 1 if a check fails.",
    "restore": "Restore a backup and replace all current data. Stop all processes first.",
    "up": "Start web, worker, and scheduler in this terminal. Press Ctrl-C to stop them.",
    "web": "Run the web process: admin, REST, and MCP. Run `bonobot migrate` first.",
    "worker": "Run a worker for sessions, discovery, health checks, and other jobs.",
}
# The first words of a command line: a group, or a group and its verb.
RENAMED_COMMANDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("notices",): ("notifications",),
    ("questions",): ("elicitations",),
    ("agents", "clear-held"): ("agents", "clear-flow-labels"),
    ("agents", "grants"): ("agents", "session-approvals"),
    ("agents", "held"): ("agents", "flow-labels"),
    ("agents", "may-ask"): ("agents", "callable-agents"),
    ("agents", "revoke-grant"): ("agents", "revoke-session-approval"),
    ("audit", "heads"): ("audit", "checkpoint"),
    ("audit", "replay"): ("audit", "simulate"),
    ("first-run", "take-up"): ("first-run", "unskip"),
    ("tokens", "clear-held"): ("tokens", "clear-flow-labels"),
    ("tokens", "held"): ("tokens", "flow-labels"),
}
# The options of a command, by its new name.
RENAMED_OPTIONS: dict[tuple[str, ...], dict[str, str]] = {
    ("agents", "tools"): {"--on": "--enable", "--off": "--disable"},
    ("approvals", "deny"): {"--word": "--message"},
    ("audit", "verify"): {"--heads": "--checkpoints"},
    ("keys", "rotate"): {"--given": "--existing"},
    ("mcp", "add"): {"--confine": "--sandbox"},
    ("models", "add"): {"--falls-over": "--fallback-on", "--sees-images": "--image-input"},
    ("models", "set"): {
        "--falls-over": "--fallback-on",
        "--sees-images": "--image-input",
        "--no-sees-images": "--no-image-input",
    },
    ("notifications", "add"): {"--minimum": "--minimum-severity"},
    ("notifications", "set"): {"--minimum": "--minimum-severity"},
    ("skills", "set"): {"--on": "--enabled", "--off": "--no-enabled"},
    ("tokens", "list"): {"--given-by": "--authorized-by"},
    ("workflows", "set"): {"--on": "--enabled", "--off": "--no-enabled"},
    ("workflows", "set-trigger"): {"--on": "--enabled", "--off": "--no-enabled"},
}


@dataclass(frozen=True)
class GroupEntry:
    """A command group: its help, and the names of the verbs in each `module:TUPLE`, in order.

    `reads` has the verbs that only read rows of the database and whose modules need no other apps.
    They run with `bonobot.settings.read_only_commands`, which load half of the modules.
    """

    help: str
    verbs: Mapping[str, str]
    reads: str = ""


class CommandModule(ModuleType):
    """The module of a group's command; creates `Command` on first access."""

    def __init__(self, name: str, entry: GroupEntry) -> None:
        super().__init__(f"{APP}.management.commands.{name}", entry.help)
        self._entry = entry

    def __getattr__(self, name: str) -> type[BaseCommand]:
        if name != "Command":
            raise AttributeError(name)
        from bonobot.core.cli.command_group import CommandGroup  # web and workers don't need it

        verb_sources = {source: names.split() for source, names in self._entry.verbs.items()}
        attributes = {"help": self._entry.help, "verb_sources": verb_sources}
        self.Command = type(name, (CommandGroup,), attributes)
        return self.Command


COMMAND_GROUPS = {
    "access-requests": GroupEntry(
        "List, create, cancel, approve, and deny requests for servers, tools, and agents",
        {
            "agents.cli.access_requests:VERBS": "list show create cancel approve deny",
        },
        reads="list show",
    ),
    "agents": GroupEntry(
        "Manage and run agents, their tools, policies, sessions, and recordings",
        {
            "agents.cli.agents:VERBS": "list add set disable enable remove",
            "agents.cli.sessions:RUN_VERBS": "run retry export-session",
            "agents.cli.chat:VERBS": "chat",
            "agents.cli.policies:VERBS": "policy explain",
            "agents.cli.agents:CALLABLE_AGENT_VERBS": "callable-agents",
            "agents.cli.session_imports:VERBS": "import-session",
            "agents.cli.builtin_tools:WORKSPACE_VERBS": "tools workspace",
            "agents.cli.sessions:VERBS": "sessions cancel release",
            "agents.cli.sessions:SESSION_APPROVAL_VERBS": (
                "session-approvals revoke-session-approval"
            ),
            "agents.cli.flow_labels:OF_AGENTS": "flow-labels clear-flow-labels",
            "agents.cli.flow_labels:STORES_OF_AGENTS": "store-labels clear-store-labels",
            "agents.cli.recordings:VERBS": "record recordings replay remove-recording",
        },
        reads="list sessions",
    ),
    "approvals": GroupEntry(
        "List, show, approve, and deny pending approvals",
        {
            "agents.cli.approvals:VERBS": "list show approve deny",
        },
        reads="list show",
    ),
    "audit": GroupEntry(
        "List, verify, export, and prune the audit log",
        {
            "bonobot.ledger.cli.audit:VERBS": "list show verify checkpoint export prune",
            "agents.cli.policy_simulations:AUDIT_VERBS": "simulate",
        },
        reads="list",
    ),
    "budgets": GroupEntry(
        "Show and set budgets of organizations, agents, sessions, and servers",
        {
            "agents.cli.budgets:VERBS": "list set",
        },
        reads="list",
    ),
    "first-run": GroupEntry(
        "Show, skip, and hide the first steps of an organization",
        {
            "agents.cli.first_run:VERBS": "show skip unskip hide unhide",
        },
        reads="show",
    ),
    "issuers": GroupEntry(
        "Manage external issuers whose tokens are accepted over MCP",
        {
            "bonobot.accounts.cli.external_issuers:VERBS": "list add set check remove",
        },
        reads="list",
    ),
    "keys": GroupEntry(
        "Show and rotate the keys of encrypted values",
        {
            "bonobot.maintenance.cli:VERBS": "status rotate drop",
        },
    ),
    "mcp": GroupEntry(
        "Manage MCP servers: add, refresh, review, test, enable, and disable them",
        {
            "mcp_servers.cli.servers:VERBS": (
                "add list test refresh install enable disable remove"
            ),
            "mcp_servers.cli.definitions:VERBS": "reject approve",
            "mcp_servers.cli.show_server:VERBS": "show",
            "mcp_servers.cli.openapi:VERBS": "operations add-operation remove-operation",
            "mcp_servers.cli.definitions:LABEL_VERBS": "label",
            "agents.cli.flow_labels:STORES_OF_SERVERS": "store-labels clear-store-labels",
            "agents.cli.budgets:PRICING": "price",
            "agents.cli.agent_servers:VERBS": "status connect disconnect tools",
            "mcp_servers.cli.health:VERBS": "history",
            "agents.cli.server_calls:VERBS": "test-tool resources prompts read prompt",
            "mcp_servers.cli.logs:VERBS": "logs",
            "mcp_servers.cli.oauth_logins:VERBS": "login logout",
            "agents.cli.server_imports:VERBS": "import",
            "agents.config_file.cli:VERBS": "export apply",
            "mcp_servers.cli.presets:VERBS": (
                "presets save-preset remove-preset enable-preset disable-preset"
            ),
            "mcp_servers.cli.launchers:VERBS": "launchers add-launcher remove-launcher",
            "agents.cli.serve_mcp:VERBS": "serve",
            "agents.cli.client_config_snippets:VERBS": "snippet",
        },
        reads="list show status history logs launchers",
    ),
    "members": GroupEntry(
        "Manage members and invitations of an organization",
        {
            "bonobot.accounts.cli.members:VERBS": (
                "list invite send-again revoke add set-role set sign-out remove "
                "reset-second-factor reset-password"
            ),
        },
        reads="list",
    ),
    "models": GroupEntry(
        "Manage the model endpoints of agents",
        {
            "agents.cli.model_endpoints:VERBS": "list add set test remove",
        },
        reads="list",
    ),
    "notes": GroupEntry(
        "Read, write, and delete notes of agents",
        {
            "agents.cli.notes:VERBS": "list write remove",
        },
        reads="list",
    ),
    "notifications": GroupEntry(
        "Manage notification channels, and show and retry notifications",
        {
            "bonobot.notifications.cli:VERBS": "list channels test retry",
            "bonobot.notifications.cli:CHANNEL_VERBS": "add set remove",
        },
        reads="list channels",
    ),
    "org": GroupEntry(
        "Manage the organization and its kill switch",
        {
            "agents.cli.organization:VERBS": "show set halt export delete resume add",
            "bonobot.accounts.cli.deletions:VERBS": "deletions restore",
        },
        reads="show",
    ),
    "elicitations": GroupEntry(
        "List, show, and answer elicitation requests of servers",
        {
            "agents.cli.elicitations:VERBS": "list show answer",
        },
        reads="list show",
    ),
    "skills": GroupEntry(
        "Create, show, and run skills: named instructions with arguments",
        {
            "agents.cli.skills:VERBS": "list show add set run remove",
        },
        reads="list",
    ),
    "sso": GroupEntry(
        "Manage OpenID Connect identity providers",
        {
            "bonobot.accounts.cli.identity_providers:VERBS": "list add set check remove",
        },
    ),
    "tokens": GroupEntry(
        "Manage tokens",
        {
            "bonobot.accounts.cli.tokens:VERBS": "create set list revoke",
            "agents.cli.flow_labels:OF_TOKENS": "flow-labels clear-flow-labels",
        },
        reads="list flow-labels",
    ),
    "tools": GroupEntry(
        "List tools, and add, delete, test, enable, and disable servers",
        {
            "agents.cli.builtin_tools:VERBS": "list",
            "mcp_servers.cli.tool_servers:VERBS": "add-mcp remove-mcp toggle-mcp list-mcp test-mcp",
        },
        reads="list list-mcp",
    ),
    "usage": GroupEntry(
        "Show calls, tokens, and cost",
        {
            "bonobot.ledger.cli.usage:VERBS": "show export rebuild",
        },
        reads="show",
    ),
    "workflows": GroupEntry(
        "Create, run, and show workflows: sequences of calls and messages to agents",
        {
            "agents.cli.workflows:VERBS": (
                "list show add set approve run runs steps cancel remove"
            ),
            "agents.cli.triggers:VERBS": (
                "triggers add-trigger set-trigger replace-secret remove-trigger"
            ),
        },
        reads="list runs",
    ),
}


def add_examples(parser: ArgumentParser, *command_lines: str) -> None:
    """Show examples at the end of the help of a command that isn't a group."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = "\n  ".join(("examples:", *command_lines))


def is_read_command(command_line: Sequence[str]) -> bool:
    """Whether a command line, without the program's name, only reads rows of the database."""
    group, verb = (*command_line, "", "")[:2]
    entry = COMMAND_GROUPS.get(group)
    return entry is not None and verb in entry.reads.split()


def list_own_commands() -> dict[str, str]:
    """Return the help of each of Bonobot's commands, by name, without importing the commands."""
    helps = COMMAND_HELPS | {name: entry.help for name, entry in COMMAND_GROUPS.items()}
    return dict(sorted(helps.items()))


def list_other_commands() -> list[str]:
    """Return the names of the commands of Django and other apps, without importing the apps."""
    names = set(find_commands(MANAGEMENT_FOLDER))
    for app in settings.INSTALLED_APPS:
        # An entry may be the path of a configuration: package, module, class.
        package = app.rsplit(".", 2)[0] if app.endswith("Config") else app
        spec = find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            names.update(find_commands(str(Path(folder, "management"))))
    return sorted(names - list_own_commands().keys())


def register_command_groups() -> None:
    """Add the groups to Django's commands in this process."""
    commands = get_commands()
    for name, entry in COMMAND_GROUPS.items():
        module = CommandModule(name, entry)
        sys.modules[module.__name__] = module
        commands[name] = APP


def replace_renamed(command_line: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a command line with the new names, and a sentence for each old one in it."""
    arguments, notes = list(command_line), []
    for length in (1, 2):
        if new := RENAMED_COMMANDS.get(tuple(arguments[:length])):
            notes.append(_format_note(" ".join(arguments[:length]), " ".join(new)))
            arguments[:length] = new
    renamed = RENAMED_OPTIONS.get(tuple(arguments[:2]), {})
    for position, word in enumerate(arguments[2:], 2):
        option, equals, value = word.partition("=")
        if new_option := renamed.get(option):
            notes.append(_format_note(option, new_option))
            arguments[position] = f"{new_option}{equals}{value}"
    return arguments, notes


def _format_note(old: str, new: str) -> str:
    return f"`{old}` is now `{new}`. The next release removes the old name."
