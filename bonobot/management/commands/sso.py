"""`bonobot sso`."""

from typing import ClassVar

from bonobot.cli.group import Group
from bonobot.cli.single_sign_on import VERBS


class Command(Group):
    help = "Identity providers that people sign in by (OpenID Connect)."
    verbs: ClassVar = VERBS
