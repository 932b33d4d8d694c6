"""`bonobot sso`."""

from typing import ClassVar

from bonobot.accounts.cli.identity_providers import VERBS
from bonobot.core.cli.command_group import CommandGroup


class Command(CommandGroup):
    help = "Identity providers that people sign in by (OpenID Connect)."
    verbs: ClassVar = VERBS
