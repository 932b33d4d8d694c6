"""`bonobot members`."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.members import VERBS


class Command(Group):
    help = "Who belongs to an organization, and who is asked to."
    verbs: ClassVar = VERBS
