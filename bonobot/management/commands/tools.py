"""`bonobot tools`."""

from typing import ClassVar

from agents.cli.tools import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "What servers offer, and what is built in."
    verbs: ClassVar = VERBS
