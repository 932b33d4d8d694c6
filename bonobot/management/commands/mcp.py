"""`bonobot mcp`: MCP servers."""

from typing import ClassVar

from bonobot.cli import declaring, importing, servers
from bonobot.cli.group import Group


class Command(Group):
    help = "Register, read, approve, try and switch MCP servers."
    verbs: ClassVar = (*servers.VERBS, *importing.VERBS, *declaring.VERBS)
