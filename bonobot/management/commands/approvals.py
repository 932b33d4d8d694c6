"""`bonobot approvals`."""

from typing import ClassVar

from bonobot.cli.approvals import VERBS
from bonobot.cli.group import Group


class Command(Group):
    help = "Calls that wait for a person: list, show, approve, deny."
    verbs: ClassVar = VERBS
