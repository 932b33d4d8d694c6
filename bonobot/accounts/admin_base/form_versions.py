"""Versions of admin forms, to detect concurrent edits.

Each form that posts to its own page carries a signed digest of each control, without values. When
it is posted, the page is rendered again for the same user. If a control differs from what was
read, nothing is written: the page is shown again (409) with the current values, the user's own
changes, and a message about the difference. The check is repeated in the transaction of the change,
so that only one of two concurrent saves succeeds.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

from django.contrib import messages
from django.contrib.messages.storage.base import BaseStorage
from django.core import signing
from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse
from django.urls import resolve
from django.utils.datastructures import MultiValueDict
from django.utils.html import format_html
from django.utils.translation import gettext as _t

from bonobot.accounts.admin_base.form_controls import (
    FIELD,
    Control,
    Form,
    element_part,
    forms_of,
    normalize_values,
)
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.core.db import preconditions
from bonobot.core.db.object_version import (
    VersionConflict,
    compute_version,
    has_part,
    is_same_part,
    secret_marks,
)
from bonobot.core.db.transactions import lock
from bonobot.core.text.masked_values import MASK
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.models import AuditRow

View = Callable[..., HttpResponseBase]
SALT = "bonobot.form_version"
SECRET = "secret:"  # noqa: S105  # prefix of the names of stored secrets, which no control shows
MOST_TOKENS = 200
SHOWN, VALUE_SHOWN = 12, 80
# Name prefixes of inputs that form rows, and name suffixes of inputs that form pairs.
ROWS, PAIRS = ("budget", "when", "p"), ("name", "value")


@dataclass
class Read:
    """A form as the user read it: its page, its key, and the version of its controls."""

    page: str
    key: str
    version: str


@dataclass
class Page:
    """The current state of a page."""

    forms: list[Form] = field(default_factory=list)
    shown_object: Any = None
    status: int = 200

    def secrets(self) -> dict[str, str]:
        """Return the marks of the secrets of the object shown."""
        return {f"{SECRET}{name}": mark for name, mark in secret_marks(self.shown_object).items()}


@dataclass
class Difference:
    """A control whose value differs from the one read; `yours` is set if the user changed it."""

    control: Control
    name: str
    yours: list[str] | None = None


class Unheard(BaseStorage):
    """A message storage that discards messages, for pages that aren't shown."""

    def _get(self, *args: Any, **kwargs: Any) -> tuple[list[Any], bool]:
        return [], True

    def _store(self, messages: Any, response: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return []


def add_form_versions(view: View) -> View:
    """Add versions to the forms of a view's pages and check those that are posted."""

    @wraps(view)
    def compared(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        show = partial(view, request, *args, **kwargs)
        if getattr(request, "reads_versions", False):
            return show()
        if request.method != "POST":
            shown_object = lambda: getattr(request, "shown_object", None)  # noqa: E731
            return _insert_versions(request, show(), shown_object)
        read = list(_iterate_version_tokens(request))
        # A form posted to another page, such as a preview, isn't saved there.
        here = any(one.page.partition("?")[0] == request.path for one in read)
        return _save(request, show, read if here else [])

    return compared


def _save(request: HttpRequest, show: Callable[[], Any], read: list[Read]) -> HttpResponseBase:
    found = list(_find_differences(request, read))
    if not found:
        stale: list[VersionConflict] = []
        with preconditions.scope():
            if read:
                preconditions.require(partial(_compare_locked, request, read, stale))
            response = show()
        if not stale:
            return _refresh_versions(request, response)
        found = list(_find_differences(request, read))
    return _refuse(request, show, read, found)


def _refuse(
    request: HttpRequest, show: Callable[[], Any], read: list[Read], found: list[Difference]
) -> HttpResponseBase:
    """Show the form again with the user's changes over the current values; write nothing."""
    text = _describe_differences(request, found)
    posted: Any = request.POST
    request.POST = _merge_changes(posted, request, read)  # type: ignore[assignment]  # it has a setter
    heard: Any = getattr(request, "_messages", None)
    request._messages = Unheard(request)  # type: ignore[attr-defined]
    with preconditions.scope():
        preconditions.require(_never)
        try:
            response = show()
        except VersionConflict:
            response = None
    if response is None or response.status_code not in (200, 400, 409):
        reading = _read_current_page(request, request.get_full_path())
        response = _get_response(reading)
        reading._messages = heard
    request._messages = heard  # type: ignore[attr-defined]
    messages.error(request, text)
    response.status_code = VersionConflict.status
    return _refresh_versions(request, response)


def _never() -> None:
    raise VersionConflict({}, "")


def _compare_locked(request: HttpRequest, read: list[Read], stale: list[VersionConflict]) -> None:
    """Lock the row and raise `VersionConflict` if it differs from what was read."""
    row = getattr(request, "shown_object", None)
    if row is None:  # a page of the organization or the user
        lock(Organization.objects.filter(pk=resolve_principal(request).organization_id))
    else:
        lock(type(row)._base_manager.filter(pk=row.pk))
    if found := list(_find_differences(request, read)):
        stale.append(VersionConflict({one.name: None for one in found}, ""))
        raise stale[0]


# -- Differences -----------------------------------------------------------------------------------


def _iterate_version_tokens(request: HttpRequest) -> Iterator[Read]:
    """Yield the form versions in the request; skip those without a valid signature."""
    for text in request.POST.getlist(FIELD)[:MOST_TOKENS]:
        try:
            page, key, version = signing.loads(text, salt=SALT)
        except (signing.BadSignature, ValueError, TypeError):
            continue
        yield Read(page, key, version)


def _find_differences(request: HttpRequest, read: list[Read]) -> Iterator[Difference]:
    """Yield the differences to what was read; skip pages that can't be shown any more."""
    pages = {one.page: _page(request, one.page) for one in read}
    for one in read:
        page = pages[one.page]
        if page.status != 200:
            continue
        form = next((form for form in page.forms if form.key == one.key), None)
        if form is None:
            yield Difference(Control("choice", _t("The page")), "")
            continue
        for name, mark in page.secrets().items():
            if not is_same_part(name, mark, one.version):
                yield Difference(Control("secret", name.removeprefix(SECRET)), name)
        for name, control in form.controls.items():
            if has_part(name, one.version) and not is_same_part(name, control.values, one.version):
                yours = normalize_values(request.POST.getlist(name))
                changed = not is_same_part(name, yours, one.version) and yours != control.values
                yield Difference(control, name, yours if changed else None)


def _merge_changes(posted: Any, request: HttpRequest, read: list[Read]) -> QueryDict:
    """Return the user's changes merged with the current values.

    If both changed a list, additions and removals of both are applied; for a text, the user's value
    is used. Choices and rows of inputs keep the current value, so the user must choose again.
    """
    merged = posted.copy()
    for one in read:
        page = _page(request, one.page)
        form = next((form for form in page.forms if form.key == one.key), None)
        if form is None:
            continue
        changed = {
            name
            for name, control in form.controls.items()
            if not is_same_part(name, control.values, one.version)
        }
        rows = {_get_row_prefix(name, form.controls[name]) for name in changed} - {""}
        for name, control in form.controls.items():
            values = normalize_values(posted.getlist(name))
            own = not is_same_part(name, values, one.version)
            theirs = name in changed and control.kind in ("choice", "radio")
            if not own or theirs or _get_row_prefix(name, control) in rows:
                merged.setlist(name, control.values)
            elif name in changed and control.kind in ("set", "lines"):
                merged.setlist(name, _merge_choices(control, name, values, one.version))
    return merged


def _merge_choices(control: Control, name: str, yours: list[str], version: str) -> list[str]:
    """Return the current elements with the user's additions and removals applied."""
    now, posted = control.elements(control.values), control.elements(yours)
    if not now and not posted:
        return yours  # prose

    def was_there(one: str) -> bool:
        return is_same_part(element_part(name, one), True, version)

    added = [one for one in posted if one not in now and not was_there(one)]
    kept = [one for one in now if one in posted or not was_there(one)]
    return ["\n".join(kept + added)] if control.kind == "lines" else kept + added


def _get_row_prefix(name: str, control: Control) -> str:
    """Return the common name prefix of the inputs of a row, blank for a single control."""
    row, _dash, column = name.rpartition("-")
    several = control.inputs > 1 and control.kind in ("text", "choice", "lines")
    first = name.partition("-")[0]
    return first if first in ROWS else row if several or column in PAIRS else ""


# -- Pages -----------------------------------------------------------------------------------------


def _insert_versions(
    request: HttpRequest, response: HttpResponseBase, shown_object: Callable[[], Any]
) -> HttpResponseBase:
    """Add versions to the forms of a page once it is rendered."""

    def add(rendered: Any) -> None:
        html = rendered.content.decode()
        page = Page(forms_of(html, request.path), shown_object())
        rendered.content = _insert_inputs(html, page.forms, page, request.get_full_path())

    return _after_render(response, add)


def _refresh_versions(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Add the current versions to the forms of a response to a POST."""

    def add(rendered: Any) -> None:
        html = rendered.content.decode()
        if forms := forms_of(html, request.path):
            here = request.get_full_path()
            page = _page(request, here)
            if page.status == 200:
                rendered.content = _insert_inputs(html, forms, page, here)

    return _after_render(response, add)


def _after_render(response: HttpResponseBase, add: Callable[[Any], None]) -> HttpResponseBase:
    if response.streaming or not response.get("Content-Type", "").startswith("text/html"):
        return response
    if isinstance(response, SimpleTemplateResponse):
        response.add_post_render_callback(add)
    elif isinstance(response, HttpResponse):
        add(response)
    return response


def _insert_inputs(html: str, forms: list[Form], page: Page, path: str) -> str:
    known = {form.key: form for form in page.forms}
    for form in reversed(forms):
        if (read := known.get(form.key)) is not None:
            version = compute_version(read.parts() | page.secrets())
            text = signing.dumps([path, form.key, version], salt=SALT)
            hidden = format_html('<input type="hidden" name="{}" value="{}">', FIELD, text)
            html = f"{html[: form.at]}{hidden}{html[form.at :]}"
    return html


def _page(request: HttpRequest, page: str) -> Page:
    """Render a page for the same user and parse its current state."""
    reading = _read_current_page(request, page)
    response = _get_response(reading)
    if isinstance(response, SimpleTemplateResponse) and not response.is_rendered:
        response.render()
    shown_object = getattr(reading, "shown_object", None)
    if response.status_code != 200 or response.streaming:
        return Page(status=response.status_code or 500)
    return Page(forms_of(response.content.decode(), reading.path), shown_object)


def _read_current_page(request: HttpRequest, page: str) -> Any:
    reading: Any = copy.copy(request)
    reading.method, reading.reads_versions, reading.shown_object = "GET", True, None
    path, _mark, query = page.partition("?")
    reading.META = request.META | {"REQUEST_METHOD": "GET", "QUERY_STRING": query}
    reading.path = reading.path_info = path
    reading.GET = QueryDict(query)
    reading.POST, reading._files = QueryDict(), MultiValueDict()
    reading._messages = Unheard(reading)
    return reading


def _get_response(reading: Any) -> Any:
    match = resolve(reading.path_info)
    reading.resolver_match = match
    return match.func(reading, *match.args, **match.kwargs)


# -- Messages --------------------------------------------------------------------------------------


def _describe_differences(request: HttpRequest, found: list[Difference]) -> str:
    changes = "; ".join(_describe_difference(one) for one in found[:SHOWN]) or _t("the page")
    if who := _find_last_editor(request):
        text = _t(
            "Not saved: %(who)s changed this in the meantime. Now: %(changes)s. Your other changes "
            "are in the form; check them and save again. (%(code)s)"
        )
    else:
        text = _t(
            "Not saved: this was changed in the meantime. Now: %(changes)s. Your other changes are "
            "in the form; check them and save again. (%(code)s)"
        )
    return text % {"who": who, "changes": changes, "code": VersionConflict.code}


def _describe_difference(one: Difference) -> str:
    label = make_visible(one.control.label or one.name, VALUE_SHOWN)
    if one.control.kind == "secret":
        return f"{label}: {MASK}"
    now = make_visible(", ".join(one.control.values), VALUE_SHOWN) or "–"
    if one.yours is None:
        return f"{label}: {now}"
    yours = make_visible(", ".join(one.yours), VALUE_SHOWN) or "–"
    return _t("%(label)s: %(now)s (yours: %(yours)s)") % {
        "label": label,
        "now": now,
        "yours": yours,
    }


def _find_last_editor(request: HttpRequest) -> str:
    """Return who last changed the object shown, blank if the audit log doesn't say."""
    row = getattr(request, "shown_object", None)
    if row is None:
        return ""
    organization_id = resolve_principal(request).organization_id
    rows = AuditRow.objects.of(organization_id).filter(resource_id=str(row.pk))
    last = rows.filter(event_type="change").order_by("-seq").first()
    return make_visible(last.actor_label, VALUE_SHOWN) if last else ""
