"""`bonobot skills`: named instructions."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.skills import VERBS


class Command(Group):
    help = "Write, show and run skills: named instructions with arguments."
    verbs: ClassVar = VERBS
