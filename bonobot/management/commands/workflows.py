"""`bonobot workflows`: sequences of calls."""

from typing import ClassVar

from agents.cli.workflows import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "Write, run and look at workflows: sequences of calls and questions to agents."
    verbs: ClassVar = VERBS
