"""`bonobot mcp`: MCP servers."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.servers import VERBS


class Command(Group):
    help = "Register, read, approve, try and switch MCP servers."
    verbs: ClassVar = VERBS
