"""`bonobot org`."""

from typing import ClassVar

from agents.cli.organization import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "The organization, and the switch that stops everything in it."
    verbs: ClassVar = VERBS
