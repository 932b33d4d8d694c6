"""`bonobot workflows`: sequences of calls."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.workflows import VERBS


class Command(Group):
    help = "Write, run and look at workflows: sequences of calls and questions to agents."
    verbs: ClassVar = VERBS
