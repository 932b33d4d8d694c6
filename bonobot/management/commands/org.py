"""`bonobot org`."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.organization import VERBS


class Command(Group):
    help = "The organization, and the switch that stops everything in it."
    verbs: ClassVar = VERBS
