"""`bonobot models`."""

from typing import ClassVar

from agents.cli.model_endpoints import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "Model endpoints: where agents think."
    verbs: ClassVar = VERBS
