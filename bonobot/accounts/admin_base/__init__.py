"""Base classes and responses of all admin pages.

Registers no models, so that the admin site itself can import it.
"""

from bonobot.accounts.admin_base.responses import (
    add_problem_message,
    add_problem_to_form,
    format_problem,
    name_address_checkbox,
    redirect_back,
    render_fragment,
    render_screen,
)
from bonobot.accounts.admin_base.scoped_admin import ScopedAdmin, ServiceFormAdmin
from bonobot.accounts.admin_base.tabbed_admin import (
    ObjectAction,
    ObjectPage,
    ObjectRequest,
    TabbedAdmin,
    TabGroup,
    redirect_to_page,
)

__all__ = [
    "ObjectAction",
    "ObjectPage",
    "ObjectRequest",
    "ScopedAdmin",
    "ServiceFormAdmin",
    "TabGroup",
    "TabbedAdmin",
    "add_problem_message",
    "add_problem_to_form",
    "format_problem",
    "name_address_checkbox",
    "redirect_back",
    "redirect_to_page",
    "render_fragment",
    "render_screen",
]
