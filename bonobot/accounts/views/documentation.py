"""The documentation for signed-in people, rendered from its sources."""

from pathlib import PurePath

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext as _t

from bonobot.accounts.admin_base.responses import render_screen
from bonobot.core.documentation import pages
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound

IMAGE_MAX_AGE_S = 3_600


def show_documentation(request: HttpRequest, name: str = "") -> HttpResponseBase:
    """Show a page or search results, or return an image of a page; raises `NotFound`."""
    name = name.rstrip("/") or pages.FIRST_PAGE
    if query := request.GET.get("q", "").strip()[: pages.MAX_QUERY]:
        return render_screen(
            request,
            "documentation.html",
            title=_("Search documentation"),
            q=query,
            results=pages.search_pages(query),
            sections=pages.load_navigation(),
        )
    if pages.is_image(name) and name in pages.find_files():
        response = HttpResponse(
            pages.find_files()[name].read_bytes(),
            content_type=pages.IMAGE_TYPES[PurePath(name).suffix],
        )
        response["Cache-Control"] = f"private, max-age={IMAGE_MAX_AGE_S}"
        return response
    if not pages.is_page(name):
        raise NotFound(
            format_message("The documentation has no page {name!r}.", name=name[:100]),
            remedy="Open the documentation's first page: /docs/",
        )
    page = pages.render_page(name)
    return render_screen(
        request,
        "documentation.html",
        title=_t("Documentation") if name == pages.FIRST_PAGE else page.title,
        page=page,
        content=mark_safe(page.html),  # noqa: S308  # rendered from files of this package
        sections=pages.load_navigation(),
        current_page=name,
    )
