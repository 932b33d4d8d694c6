"""`bonobot notes`: what agents keep for later sessions."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.notes import VERBS


class Command(Group):
    help = "Read, write and remove the notes that agents keep."
    verbs: ClassVar = VERBS
