"""`bonobot agents`."""

from typing import ClassVar

from agents.cli import agents, flow_labels, recordings, sessions, store_labels
from agents.cli import tools as cli_tools
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "List, make, run, and decide what they may call."
    verbs: ClassVar = (
        *agents.VERBS,
        *agents.CALLABLE_AGENT_VERBS,
        *cli_tools.WORKSPACE_VERBS,
        *sessions.VERBS,
        *sessions.SESSION_APPROVAL_VERBS,
        *flow_labels.OF_AGENTS,
        *store_labels.OF_AGENTS,
        *recordings.VERBS,
    )
