"""`bonobot audit`."""

from typing import ClassVar

from bonobot.core.cli.command_group import CommandGroup
from bonobot.ledger.cli.audit import VERBS


class Command(CommandGroup):
    help = "What happened, and whether the record is whole."
    verbs: ClassVar = VERBS
