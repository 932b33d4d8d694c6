"""`bonobot audit`."""

from typing import ClassVar

from bonobot.cli.audit import VERBS
from bonobot.cli.group import Group


class Command(Group):
    help = "What happened, and whether the record is whole."
    verbs: ClassVar = VERBS
