"""`bonobot tools`."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.tools import VERBS


class Command(Group):
    help = "What servers offer, and what is built in."
    verbs: ClassVar = VERBS
