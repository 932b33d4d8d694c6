"""The admin of people, organizations, memberships and tokens: importing registers them."""

from bonobot.tenancy.admin import people, tokens
from bonobot.tenancy.screens import ScopedAdmin

__all__ = ["ScopedAdmin", "people", "tokens"]
