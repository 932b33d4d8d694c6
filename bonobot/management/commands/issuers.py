"""`bonobot issuers`."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.issuers import VERBS


class Command(Group):
    help = "Whose tokens are taken over MCP, beside our own."
    verbs: ClassVar = VERBS
