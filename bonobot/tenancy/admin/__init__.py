"""The admin of people, organizations, memberships, tokens and issuers: importing registers them."""

from bonobot.tenancy.admin import issuers, people, tokens
from bonobot.tenancy.screens import ScopedAdmin

__all__ = ["ScopedAdmin", "issuers", "people", "tokens"]
