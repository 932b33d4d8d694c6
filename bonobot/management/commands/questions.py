"""`bonobot questions`."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.questions import VERBS


class Command(Group):
    help = "What servers ask the people who run sessions: list, show, answer."
    verbs: ClassVar = VERBS
