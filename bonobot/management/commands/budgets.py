"""`bonobot budgets`: what may be spent."""

from typing import ClassVar

from agents.cli.budgets import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "Show and set what organizations, agents, sessions and servers may spend."
    verbs: ClassVar = VERBS
