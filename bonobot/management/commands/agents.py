"""`bonobot agents`."""

from typing import ClassVar

from bonobot.cli import agents, callees, evaluating, workspaces
from bonobot.cli.group import Group


class Command(Group):
    help = "List, make, run, and decide what they may call."
    verbs: ClassVar = (
        *agents.VERBS,
        *callees.VERBS,
        *workspaces.VERBS,
        *evaluating.VERBS,
    )
