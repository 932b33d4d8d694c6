"""`bonobot keys`."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.keys import VERBS


class Command(Group):
    help = "The keys of sealed values: which seals what, and a new one while everything runs."
    verbs: ClassVar = VERBS
