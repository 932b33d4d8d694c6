"""`bonobot mcp`: MCP servers."""

from typing import ClassVar

from bonobot.cli import connecting, declaring, importing, presets, servers
from bonobot.cli.group import Group


class Command(Group):
    help = "Register, read, approve, try and switch MCP servers."
    verbs: ClassVar = (
        *servers.VERBS,
        *connecting.VERBS,
        *importing.VERBS,
        *declaring.VERBS,
        *presets.VERBS,
    )
