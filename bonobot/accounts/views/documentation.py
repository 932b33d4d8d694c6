"""The documentation for signed-in people, rendered from its sources."""

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.safestring import mark_safe

from bonobot.accounts.admin_base.responses import render_screen
from bonobot.core.documentation import pages
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound

IMAGE_MAX_AGE_S = 3_600


def show_documentation(request: HttpRequest, name: str = "") -> HttpResponseBase:
    """Show a page, or return an image of one; raises `NotFound`."""
    name = name.rstrip("/") or pages.FIRST_PAGE
    path = pages.find_files().get(name)
    if path is None:
        raise NotFound(
            format_message("The documentation has no page {name!r}.", name=name[:100]),
            remedy="Open the documentation's first page: /docs/",
        )
    if pages.is_image(name):
        response = HttpResponse(path.read_bytes(), content_type=pages.IMAGE_TYPES[path.suffix])
        response["Cache-Control"] = f"private, max-age={IMAGE_MAX_AGE_S}"
        return response
    page = pages.render_page(name)
    return render_screen(
        request,
        "documentation.html",
        title=page.title,
        page=page,
        content=mark_safe(page.html),  # noqa: S308  # rendered from files of this package
        sections=pages.load_navigation(),
        current_page=name,
    )
