"""`bonobot agents`."""

from typing import ClassVar

from bonobot.cli.agents import VERBS
from bonobot.cli.group import Group


class Command(Group):
    help = "List, make, run, and decide what they may call."
    verbs: ClassVar = VERBS
