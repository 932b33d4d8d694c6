"""`bonobot first-run`."""

from typing import ClassVar

from bonobot.cli.first_run import VERBS
from bonobot.cli.group import Group


class Command(Group):
    help = "The first steps of an organization: which are done, skipped or hidden."
    verbs: ClassVar = VERBS
