"""`bonobot tokens`."""

from typing import ClassVar

from agents.cli.flow_labels import OF_TOKENS
from bonobot.accounts.cli.tokens import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "Keys for programs."
    verbs: ClassVar = (*VERBS, *OF_TOKENS)
