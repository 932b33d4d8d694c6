"""The admin of people, organizations, tokens and whom is trusted: importing registers it."""

from bonobot.tenancy.admin import invitations, issuers, people, providers, tokens
from bonobot.tenancy.screens import ScopedAdmin

__all__ = ["ScopedAdmin", "invitations", "issuers", "people", "providers", "tokens"]
