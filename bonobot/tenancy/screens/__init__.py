"""What every screen of the admin stands on: one organization's rows, roles, pages, answers.

It registers nothing, so that the site itself can be built upon it.
"""

from bonobot.tenancy.screens.answers import back, fragment, refuse, screen, tell, told
from bonobot.tenancy.screens.pages import Deed, Page, PagedAdmin, Visit, onward
from bonobot.tenancy.screens.scoped import OperatedAdmin, ScopedAdmin

__all__ = [
    "Deed",
    "OperatedAdmin",
    "Page",
    "PagedAdmin",
    "ScopedAdmin",
    "Visit",
    "back",
    "fragment",
    "onward",
    "refuse",
    "screen",
    "tell",
    "told",
]
