"""`bonobot skills`: named instructions."""

from typing import ClassVar

from agents.cli.skills import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "Write, show and run skills: named instructions with arguments."
    verbs: ClassVar = VERBS
