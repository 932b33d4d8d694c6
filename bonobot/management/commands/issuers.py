"""`bonobot issuers`."""

from typing import ClassVar

from bonobot.accounts.cli.external_issuers import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "Whose tokens are taken over MCP, beside our own."
    verbs: ClassVar = VERBS
