"""`bonobot notices`."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.notices import VERBS


class Command(Group):
    help = "What people are told by e-mail and webhook, and whether it arrived."
    verbs: ClassVar = VERBS
