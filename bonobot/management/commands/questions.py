"""`bonobot questions`."""

from typing import ClassVar

from agents.cli.elicitations import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "What servers ask the people who run sessions: list, show, answer."
    verbs: ClassVar = VERBS
