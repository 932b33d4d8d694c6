"""`bonobot usage`."""

from typing import ClassVar

from bonobot.core.cli.command_group import CommandGroup
from bonobot.ledger.cli.usage import VERBS


class Command(CommandGroup):
    help = "What was called, and what it cost."
    verbs: ClassVar = VERBS
