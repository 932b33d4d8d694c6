"""The admin of people, organizations, tokens and whom is trusted: importing registers it."""

from bonobot.accounts.admin import (
    external_issuers,
    identity_providers,
    invitations,
    members,
    tokens,
)
from bonobot.accounts.admin_base import ScopedAdmin

__all__ = [
    "ScopedAdmin",
    "external_issuers",
    "identity_providers",
    "invitations",
    "members",
    "tokens",
]
