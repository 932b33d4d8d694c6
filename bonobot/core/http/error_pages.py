"""Error pages for browsers: 403, 404, 429, 500, a failed CSRF check, and tracebacks, masked.

They are rendered without the request, so they need neither a session nor the database. Programs
(REST, the OAuth endpoints, health checks) receive Django's plain answers.

In a traceback, Django hides settings and form fields by name; this also masks the secrets decrypted
in this process and text that looks like credentials.
"""

from urllib.parse import urlsplit

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.views import csrf, defaults
from django.views.debug import ExceptionReporter

from bonobot.core.http.cors import API_PREFIXES
from bonobot.core.i18n.localization import localize_text
from bonobot.core.i18n.messages import format_message
from bonobot.core.telemetry.logging import request_id
from bonobot.core.text import masking

PROGRAM_PREFIXES = (
    *API_PREFIXES,
    "/.well-known/",
    "/healthz",
    "/oauth/register",
    "/oauth/revoke",
    "/oauth/token",
    "/readyz",
    "/registry/",
    "/static/",
)

UNKNOWN_ADDRESS = format_message(
    "The address is wrong, or the item was deleted or belongs to another organization."
)


class MaskingExceptionReporter(ExceptionReporter):
    """Django's exception report, masked like logs."""

    def get_traceback_html(self) -> SafeString:
        return _mask_report(super().get_traceback_html())

    def get_traceback_text(self) -> SafeString:
        """Return the report as text, for emails and programs."""
        return _mask_report(super().get_traceback_text())


def show_forbidden(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Respond 403."""
    if _is_for_programs(request):
        return defaults.permission_denied(request, exception)
    return _render_page(
        403,
        _("You don't have permission to view this page"),
        _("Ask an owner of your organization for access, or sign in with another account."),
    )


def show_not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Respond 404."""
    if _is_for_programs(request):
        return defaults.page_not_found(request, exception)
    return _render_page(
        404,
        _("Page not found"),
        localize_text(UNKNOWN_ADDRESS),
    )


def show_too_many_requests(request: HttpRequest) -> HttpResponseBase:
    """Respond 429."""
    return _render_page(429, _("Too many attempts"), _("Wait a few minutes, then try again."))


def show_server_error(request: HttpRequest) -> HttpResponseBase:
    """Respond 500."""
    if _is_for_programs(request):
        return defaults.server_error(request)
    is_form = request.method == "POST"
    return _render_page(
        500,
        _("Something went wrong"),
        _("An unexpected error occurred and was logged. What you entered may not have been saved.")
        if is_form
        else _("The page couldn't be shown because of an unexpected error, which was logged."),
        _("Try again. If it happens again, send the request ID to your administrator."),
        form_page=find_form_page(request, default="") if is_form else "",
        retry_page="" if is_form else request.get_full_path(),
    )


def show_csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponseBase:
    """Respond 403 to a form whose CSRF token is missing or outdated."""
    if _is_for_programs(request):
        return csrf.csrf_failure(request, reason)
    return _render_page(
        403,
        _("This form has expired"),
        _("Nothing was saved. Return to the form and send it again."),
        form_page=find_form_page(request, default=""),
    )


def _is_for_programs(request: HttpRequest) -> bool:
    return request.path.startswith(PROGRAM_PREFIXES)


def _render_page(
    status: int,
    title: str,
    detail: str,
    remedy: str = "",
    *,
    form_page: str = "",
    retry_page: str = "",
) -> HttpResponse:
    context = {
        "status": status,
        "title": title,
        "detail": detail,
        "remedy": remedy,
        "form_page": form_page,
        "retry_page": retry_page,
        "request_id": request_id.get(),
    }
    return HttpResponse(render_to_string("errors/page.html", context), status=status)


def find_form_page(request: HttpRequest, default: str) -> str:
    """Return the path of the page whose form was posted, which can be loaded again.

    The address of the POST itself often answers POST only. `default` if the browser didn't say.
    """
    referrer = request.headers.get("Referer", "")
    try:
        hosts = {request.get_host()}
    except DisallowedHost:  # also the reason of an error page
        return default
    is_own = url_has_allowed_host_and_scheme(referrer, hosts, request.is_secure())
    parts = urlsplit(referrer)
    # Browsers read a path that begins with two slashes as another host.
    if not is_own or not parts.path.startswith("/") or parts.path[1:2] in ("/", "\\"):
        return default
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _mask_report(report: str) -> SafeString:
    """Return an escaped report with secrets masked."""
    return SafeString(masking.get_process_masker().mask_text(report))
