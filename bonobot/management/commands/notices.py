"""`bonobot notices`."""

from typing import ClassVar

from bonobot.core.cli.command_group import CommandGroup
from bonobot.notifications import cli as notification_cli


class Command(CommandGroup):
    help = "What people are told by e-mail and webhook, and whether it arrived."
    verbs: ClassVar = (*notification_cli.VERBS, *notification_cli.CHANNEL_VERBS)
