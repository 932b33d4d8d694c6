"""Outside: pages for people who aren't signed in, or not wholly; in the look of the login."""

from typing import Any

from django.http import HttpRequest
from django.template.response import TemplateResponse

from bonobot.lib.admin import site

# Beginnings of the names of the library's addresses.
LIBRARY = ("mfa_", "account_reauthenticate")


def outside(
    request: HttpRequest, template: str, *, title: Any, status: int = 200, **context: Any
) -> TemplateResponse:
    """Return a page without navigation, from `templates/people/…`."""
    request.current_app = site.name
    whole = {**site.each_context(request), "title": title, **context}
    return TemplateResponse(request, f"people/{template}", whole, status=status)


def look(request: HttpRequest) -> dict[str, Any]:
    """Give the library's pages what the admin's layout shows (a context processor)."""
    found = request.resolver_match
    name = str(found.url_name or "") if found else ""
    return site.each_context(request) if name.startswith(LIBRARY) else {}
