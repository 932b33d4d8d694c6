"""`bonobot approvals`."""

from typing import ClassVar

from agents.cli.approvals import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "Calls that wait for a person: list, show, approve, deny."
    verbs: ClassVar = VERBS
