"""Register the admin of users, organizations, tokens and issuers."""

from bonobot.accounts.admin import (
    deletions,
    external_issuers,
    identity_providers,
    invitations,
    members,
    tokens,
)
from bonobot.accounts.admin_base import ScopedAdmin

__all__ = [
    "ScopedAdmin",
    "deletions",
    "external_issuers",
    "identity_providers",
    "invitations",
    "members",
    "tokens",
]
