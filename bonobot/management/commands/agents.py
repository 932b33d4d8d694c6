"""`bonobot agents`."""

from typing import ClassVar

from bonobot.cli import (
    agents,
    callees,
    evaluating,
    grants,
    held,
    sessions,
    store_labels,
    workspaces,
)
from bonobot.cli.group import Group


class Command(Group):
    help = "List, make, run, and decide what they may call."
    verbs: ClassVar = (
        *agents.VERBS,
        *callees.VERBS,
        *workspaces.VERBS,
        *sessions.VERBS,
        *grants.VERBS,
        *held.OF_AGENTS,
        *store_labels.OF_AGENTS,
        *evaluating.VERBS,
    )
