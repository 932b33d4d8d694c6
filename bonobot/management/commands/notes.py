"""`bonobot notes`: what agents keep for later sessions."""

from typing import ClassVar

from agents.cli.notes import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "Read, write and remove the notes that agents keep."
    verbs: ClassVar = VERBS
