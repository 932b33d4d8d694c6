"""`bonobot first-run`."""

from typing import ClassVar

from agents.console.cli import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "The first steps of an organization: which are done, skipped or hidden."
    verbs: ClassVar = VERBS
