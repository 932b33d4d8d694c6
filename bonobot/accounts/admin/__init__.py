"""Register the admin of users, organizations, tokens and issuers."""

from bonobot.accounts.admin import (  # noqa: F401 - importing registers
    deletions,
    external_issuers,
    identity_providers,
    invitations,
    members,
    tokens,
)
