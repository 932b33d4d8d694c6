"""`bonobot usage`."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.usage import VERBS


class Command(Group):
    help = "What was called, and what it cost."
    verbs: ClassVar = VERBS
