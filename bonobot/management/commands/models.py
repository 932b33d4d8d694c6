"""`bonobot models`."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.models import VERBS


class Command(Group):
    help = "Model endpoints: where agents think."
    verbs: ClassVar = VERBS
