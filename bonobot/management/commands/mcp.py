"""`bonobot mcp`: MCP servers."""

from typing import ClassVar

from bonobot.cli import (
    budgets,
    connecting,
    declaring,
    history,
    importing,
    labels,
    launchers,
    logs,
    offers,
    operations,
    presets,
    servers,
    serving,
    showing,
    signing_in,
    snippets,
    store_labels,
)
from bonobot.cli.group import Group


class Command(Group):
    help = "Register, read, approve, try and switch MCP servers."
    verbs: ClassVar = (
        *servers.VERBS,
        *showing.VERBS,
        *operations.VERBS,
        *labels.VERBS,
        *store_labels.OF_SERVERS,
        *budgets.PRICING,
        *connecting.VERBS,
        *history.VERBS,
        *offers.VERBS,
        *logs.VERBS,
        *signing_in.VERBS,
        *importing.VERBS,
        *declaring.VERBS,
        *presets.VERBS,
        *launchers.VERBS,
        *serving.VERBS,
        *snippets.VERBS,
    )
