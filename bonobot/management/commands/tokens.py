"""`bonobot tokens`."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.held import OF_TOKENS
from bonobot.cli.tokens import VERBS


class Command(Group):
    help = "Keys for programs."
    verbs: ClassVar = (*VERBS, *OF_TOKENS)
