"""`bonobot keys`."""

from typing import ClassVar

from bonobot.core.cli.command_group import CommandGroup
from bonobot.maintenance.cli import VERBS


class Command(CommandGroup):
    help = "The keys of sealed values: which seals what, and a new one while everything runs."
    verbs: ClassVar = VERBS
