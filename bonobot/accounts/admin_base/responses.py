"""Responses of our own admin pages, and how they show problems."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.middleware.csrf import get_token
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t

from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Deletion
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import error_code
from bonobot.core.admin.theme import site
from bonobot.core.db.object_version import VersionConflict
from bonobot.core.http.error_pages import UNKNOWN_ADDRESS
from bonobot.core.i18n.localization import localize_problem, localize_text
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, InvalidInput, NotFound, Problem
from bonobot.core.telemetry.logging import request_id
from bonobot.core.text.syntax_highlighting import render_sentence as as_sentence
from bonobot.core.text.untrusted_text import make_visible

# Scripts request a fragment of a page with this header; errors are fragments, too.
FRAGMENT_HEADER = "Bonobot-Fragment"
MAX_PROBLEM = 2_000  # characters of a message on a page

View = Callable[..., HttpResponseBase]
RowT = TypeVar("RowT", bound=Model)


def render_screen(
    request: HttpRequest, template: str, *, title: Any, status: int = 200, **context: Any
) -> TemplateResponse:
    """Return an admin page with navigation from `templates/admin/…`."""
    request.current_app = site.name
    full_context = {**site.each_context(request), "title": title, **context}
    return TemplateResponse(request, f"admin/{template}", full_context, status=status)


def render_fragment(
    request: HttpRequest, template: str, *, status: int = 200, **context: Any
) -> HttpResponse:
    """Return a fragment without navigation from `templates/admin/…`."""
    principal = resolve_principal(request)
    context |= {"principal": principal, "may": build_permissions(principal)}
    return render(request, f"admin/{template}", context, status=status)


def build_permissions(principal: Principal) -> dict[str, bool]:
    """Return whether the principal may perform each action, by name, for templates."""
    return {action.value: principal.may(action) for action in Action}


def add_problem_message(request: HttpRequest, problem: Problem) -> None:
    """Add a problem to the messages: what happened, what to do, and its code."""
    messages.error(request, format_problem(problem))


def format_problem(problem: Problem) -> SafeString:
    """Return what happened and what to do, with a small link to the code's documentation.

    The code of all invalid input says less than the sentence: it isn't shown.
    """
    text = as_sentence(localize_problem(problem), MAX_PROBLEM)
    if problem.code == InvalidInput.code:
        return format_html("{}", text)
    return format_html("{} {}", text, error_code(problem.code))


def change_each(
    request: HttpRequest, rows: Iterable[RowT], change: Callable[[RowT], object]
) -> int:
    """Change each row; show the problem of each that can't be; return how many were changed."""
    count = 0
    for row in rows:
        name = make_visible(str(row))
        try:
            change(row)
        except Problem as problem:
            messages.error(request, format_html("{}: {}", name, format_problem(problem)))
        else:
            count += 1
    return count


def name_address_checkbox(problem: Problem, label: str) -> None:
    """Name the checkbox in the remedy of a private address, for someone who may allow it."""
    if problem.code == "private_address":
        problem.remedy = format_message("Select “{label}” and check again.", label=label)


def add_problem_to_form(
    form: forms.BaseForm, problem: Problem, fields: Mapping[str, str] | None = None
) -> None:
    """Add a problem to the form, at its field if there is one.

    `fields` maps the problem's fields to the form's (`endpoint_config.url` → `url`).
    """
    checkbox = form.fields.get("allow_private")
    if checkbox is not None and not checkbox.disabled:
        name_address_checkbox(problem, str(checkbox.label))
    field_path = (fields or {}).get(problem.field) or problem.field
    parts = [field_path, *field_path.split(".")[::-1]]
    field = next((part for part in parts if part in form.fields), None)
    has_message = isinstance(problem, VersionConflict)  # of the page, with its code
    text = as_sentence(localize_problem(problem)) if has_message else format_problem(problem)
    form.add_error(field, ValidationError(text, code=problem.code))


def redirect_back(request: HttpRequest, default: str = "") -> HttpResponseRedirect:
    """Redirect to the referring page if it is ours, else to `default` or the index."""
    return HttpResponseRedirect(_read_referrer_path(request) or default or reverse("admin:index"))


def _read_referrer_path(request: HttpRequest) -> str:
    """Return the path of the referring page, blank if it isn't ours."""
    referrer = request.headers.get("Referer", "")
    is_own_page = url_has_allowed_host_and_scheme(
        referrer, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    parts = urlsplit(referrer)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return target if is_own_page else ""


def handle_problems(view: View) -> View:
    """Wrap a view so that problems become messages or pages instead of a 500.

    Unknown addresses are problems, too: signed-in people keep the navigation.
    """

    @wraps(view)
    def call_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return view(request, *args, **kwargs)
        except Problem as problem:
            return _render_problem(request, problem)
        except Http404:
            return _render_problem(request, NotFound(UNKNOWN_ADDRESS))

    return call_view


def _render_problem(request: HttpRequest, problem: Problem) -> HttpResponseBase:
    if FRAGMENT_HEADER in request.headers:
        return render_fragment(
            request, "parts/problem.html", status=problem.status, problem=problem
        )
    # Forbidden and missing things get a page of their own, so that the status is right.
    needs_own_page = isinstance(problem, Forbidden) or problem.status == 404
    if request.method == "POST" and not needs_own_page:
        add_problem_message(request, problem)
        return redirect_back(request)
    return render_screen(
        request,
        "problem.html",
        title=localize_text(problem.title),
        status=problem.status,
        problem=problem,
        is_problem_page=True,
        request_id=request_id.get(),
        previous_url=_read_referrer_path(request),
    )


def add_deleted_message(request: HttpRequest, name: str, deletion: Deletion | None) -> None:
    """Say that an object was deleted; offer to undo it if it can be restored."""
    add_deletion_message(request, _t("%(name)s was deleted.") % {"name": name}, deletion)


def add_deletion_message(request: HttpRequest, text: str, deletion: Deletion | None) -> None:
    """Show a message about a deletion; offer to undo it if it can be restored."""
    if deletion is not None:
        url = reverse("admin:tenancy_deletion_restore", args=[deletion.pk])
        text = _add_undo(request, text, url)
    messages.success(request, text)


def _add_group_deleted_message(
    request: HttpRequest, text: str, deletions: Sequence[Deletion]
) -> None:
    """Say that several objects were deleted, with `text`; offer to undo all of it at once."""
    url = reverse("admin:tenancy_deletion_changelist")
    chosen = [(ACTION_CHECKBOX_NAME, deletion.pk) for deletion in deletions]
    fields = [("action", "restore_chosen"), *chosen]
    messages.success(request, _add_undo(request, text, url, fields))


def delete_each(
    request: HttpRequest,
    rows: Iterable[RowT],
    delete: Callable[[RowT], Deletion | None],
    describe_count: Callable[[int], str],
) -> None:
    """Delete each row, and offer to undo it for all that can be restored, at once."""
    deletions: list[Deletion] = []

    def delete_row(row: RowT) -> None:
        name = str(row)
        deletion = delete(row)
        if deletion is None:
            add_deleted_message(request, name, None)
        else:
            deletions.append(deletion)

    change_each(request, rows, delete_row)
    if len(deletions) == 1:
        add_deleted_message(request, deletions[0].name, deletions[0])
    elif deletions:
        _add_group_deleted_message(request, describe_count(len(deletions)), deletions)


def _add_undo(
    request: HttpRequest, text: str, url: str, fields: Iterable[tuple[str, object]] = ()
) -> SafeString:
    """Return the text with a button that posts the fields to the URL."""
    return format_html(
        '{} <form class="bb-inline-form" method="post" action="{}">{}'
        '<button class="bb-link-button" type="submit">{}</button></form>',
        text,
        url,
        format_html_join(
            "",
            '<input type="hidden" name="{}" value="{}">',
            [("csrfmiddlewaretoken", get_token(request)), *fields],
        ),
        _t("Undo"),
    )
