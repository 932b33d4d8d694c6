"""`bonobot notices`."""

from typing import ClassVar

from bonobot.cli import channels, notices
from bonobot.cli.group import Group


class Command(Group):
    help = "What people are told by e-mail and webhook, and whether it arrived."
    verbs: ClassVar = (*notices.VERBS, *channels.VERBS)
