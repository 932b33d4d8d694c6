"""`bonobot members`."""

from typing import ClassVar

from bonobot.accounts.cli.members import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "Who belongs to an organization, and who is asked to."
    verbs: ClassVar = VERBS
