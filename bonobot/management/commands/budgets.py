"""`bonobot budgets`: what may be spent."""

from typing import ClassVar

from bonobot.cli.budgets import VERBS
from bonobot.cli.group import Group


class Command(Group):
    help = "Show and set what organizations, agents, sessions and servers may spend."
    verbs: ClassVar = VERBS
