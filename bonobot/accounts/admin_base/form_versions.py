"""Versions of admin forms, to detect concurrent edits.

Each form that posts to its own page carries a signed digest of each control, without values. When
it is posted, the page is rendered again for the same user. If a control differs from what was
read, nothing is written: the page is shown again (409) with the current values, the user's own
changes, and a message about the difference. The check is repeated in the transaction of the change,
so that only one of two concurrent saves succeeds.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from html import unescape
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

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

from bonobot.accounts.admin_base.form_conflicts import (
    LAST_CHANGE_FIELD,
    Difference,
    FormConflict,
    describe_conflict,
    find_last_editor,
    render_field_conflicts,
)
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.core.db import object_version
from bonobot.core.db.object_version import (
    VersionConflict,
    collect_secret_marks,
    compute_version,
    has_part,
    is_same_part,
)
from bonobot.core.db.transactions import lock_rows
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json

VERSION_FIELD = "_version"
# Hidden inputs that differ from page to page.
_IGNORED_INPUTS = frozenset({"csrfmiddlewaretoken", VERSION_FIELD})
_BUTTONS = frozenset({"submit", "button", "reset", "image", "file"})
_CHECKABLE_TYPES = frozenset({"checkbox", "radio"})
_ATTRIBUTES = r"""(?:[^>"']|"[^"]*"|'[^']*')*"""
_CONTROL_KINDS = {
    "password": "secret",
    "textarea": "lines",
    "select": "choice",
    "radio": "radio",
} | {"checkbox": "choice"}
# Longer texts, or texts with longer lines, are prose and compared as a whole.
MAX_LINES, MAX_LINE_LENGTH = 200, 600
_FORM = re.compile(rf"<form\b({_ATTRIBUTES})>(.*?)</form>", re.I | re.S)
_TAG = re.compile(rf"<(/?)(input|select|option|textarea|fieldset|label)\b({_ATTRIBUTES})>", re.I)
_ATTRIBUTE = re.compile(r"""([^\s=>"'/]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"']+)))?""")
_MARKUP = re.compile(r"<[^>]*>")
# Controls that show the current value again if both changed them.
CHOSEN_AGAIN = frozenset({"choice", "radio"})
# But a denial is kept, no matter who chose it: both changes together don't allow more than either.
DENIAL = ["deny"]
NO_NOTES: Mapping[str, str] = MappingProxyType({})
View = Callable[..., HttpResponseBase]
VERSION_SALT = "bonobot.form_version"
SECRET_PREFIX = "secret:"  # noqa: S105  # prefix of the names of stored secrets, which no control shows
MAX_TOKENS = 200
# Name prefixes of inputs that form rows, and name suffixes of inputs that form pairs.
ROW_PREFIXES, PAIR_SUFFIXES = ("budget", "when", "p"), ("name", "value")


@dataclass
class Control:
    """A named control of a form; `values` are those of all inputs with this name.

    Kinds: `text`, `secret`, `choice` and `radio` (one of several), `set` (any of several), `lines`
    (a text of several lines).
    """

    kind: str
    label: str = ""
    values: list[str] = field(default_factory=list)
    input_count: int = 0

    def list_elements(self, values: list[str]) -> list[str]:
        """Return the elements that can be merged one by one: selected values, or lines."""
        if self.kind == "set":
            return values
        lines = values[0].split("\n") if self.kind == "lines" and len(values) == 1 else []
        is_list = len(lines) <= MAX_LINES and all(len(line) <= MAX_LINE_LENGTH for line in lines)
        return [line for line in lines if line.strip()] if is_list else []


@dataclass
class Form:
    """A form that posts to its own page; hidden inputs are inserted at `insert_at`."""

    insert_at: int
    key: str
    controls: dict[str, Control]

    def build_parts(self) -> dict[str, Any]:
        """Return the parts that the form's version covers: values and elements by name."""
        parts: dict[str, Any] = {name: control.values for name, control in self.controls.items()}
        for name, control in self.controls.items():
            parts |= {
                build_element_key(name, element): True
                for element in control.list_elements(control.values)
            }
        return parts


def build_element_key(name: str, element: str) -> str:
    """Return the name of the version part for an element of a control."""
    return f"{name}\n{element}"


def parse_forms(html: str, path: str) -> list[Form]:
    """Return the forms of a page that post to `path`.

    A fragment without a form element counts as one: it is inserted into another form.
    """
    if "<html" not in html[:1000] and "<form" not in html:
        first_tag = _TAG.search(html)
        forms = [_build_form(html, first_tag.start())] if first_tag else []
        return [form for form in forms if form.controls]
    forms = []
    counts_by_key: dict[str, int] = {}
    for match in _FORM.finditer(html):
        attributes = _parse_attributes(match[1])
        if not _is_form_of_path(attributes, path):
            continue
        form = _build_form(match[2], match.start(2))
        if "data-versioned" in attributes:
            form.key = ""  # its hidden inputs are compared when it is posted
        if form.controls:
            counts_by_key[form.key] = number = counts_by_key.get(form.key, -1) + 1
            form.key += f".{number}"
            forms.append(form)
    return forms


def normalize_values(values: list[str]) -> list[str]:
    """Return values with normalized line ends, as browsers send their own."""
    return [value.replace("\r\n", "\n").replace("\r", "\n") for value in values]


def _is_form_of_path(attributes: Mapping[str, str], path: str) -> bool:
    action = urlsplit(attributes.get("action", "")).path
    return (
        attributes.get("method", "").lower() == "post"
        and action in ("", path)
        and ("data-unguarded" not in attributes or "data-versioned" in attributes)
        and attributes.get("id") != "changelist-form"
    )


def _build_form(html: str, insert_at: int) -> Form:
    hidden: list[tuple[str, str]] = []
    controls: dict[str, Control] = {}
    labels: dict[str, str] = {}
    names_by_id: dict[str, str] = {}
    for tag, attributes, content in _iterate_tags(html):
        name = attributes.get("name", "")
        kind = attributes.get("type", "text").lower() if tag == "input" else tag
        if tag == "label":
            labels.setdefault(attributes.get("for", ""), content)
        elif not name or "disabled" in attributes or kind in _BUTTONS:
            continue
        elif kind == "hidden" and name != LAST_CHANGE_FIELD:
            hidden.append((name, attributes.get("value", "")))
        else:
            _add_control(controls, name, kind, attributes, content)
            if "data-label" not in attributes:
                names_by_id.setdefault(attributes.get("id", ""), name)
    for identifier, text in labels.items():
        if identifier and identifier in names_by_id:
            controls[names_by_id[identifier]].label = (
                text or controls[names_by_id[identifier]].label
            )
    hidden_values = sorted(pair for pair in hidden if pair[0] not in _IGNORED_INPUTS)
    return Form(insert_at, compute_digest(to_canonical_json(hidden_values))[:12], controls)


def _add_control(
    controls: dict[str, Control], name: str, kind: str, attributes: Mapping[str, str], content: str
) -> None:
    control_kind = _CONTROL_KINDS.get(kind, "text")
    if kind == "select" and "multiple" in attributes:
        control_kind = "set"
    label = attributes.get("data-label") or attributes.get("aria-label", "")
    control = controls.setdefault(name, Control(control_kind, label))
    control.input_count += 1
    if kind == "checkbox" and control.input_count > 1:
        control.kind = "set"
    if kind == "select":
        control.values += [unescape(option) for option in content.split("\0") if option != "\1"]
    elif kind in _CHECKABLE_TYPES:
        if "checked" in attributes:
            control.values.append(attributes.get("value", "on"))
    else:
        value = content if kind == "textarea" else attributes.get("value", "")
        control.values += normalize_values([value])


def _iterate_tags(html: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield (tag, attributes, content) of the enabled controls and labels of a form.

    The content of a select is its selected values joined with NUL.
    """
    disabled_depth = 0
    position = 0
    while match := _TAG.search(html, position):
        position = match.end()
        is_closing, tag, attributes = match[1], match[2].lower(), _parse_attributes(match[3])
        if tag == "fieldset":
            if is_closing:
                disabled_depth = max(0, disabled_depth - 1)
            elif disabled_depth or "disabled" in attributes:
                disabled_depth += 1
            continue
        if is_closing or tag == "option":
            continue
        content = ""
        if tag in ("textarea", "select", "label"):
            end = html.find(f"</{tag}", position)
            end = len(html) if end < 0 else end
            inner, position = html[position:end], position if tag == "label" else end
            content = _get_tag_content(tag, inner, attributes)
        if not disabled_depth or tag == "label":
            yield tag, attributes, content


def _get_tag_content(tag: str, inner: str, attributes: Mapping[str, str]) -> str:
    if tag == "textarea":
        return unescape(inner.removeprefix("\r\n").removeprefix("\n"))
    if tag == "label":
        return " ".join(unescape(_MARKUP.sub(" ", inner)).split())
    options = [
        (_parse_attributes(match[3]), inner[match.end() :].partition("<")[0])
        for match in _TAG.finditer(inner)
        if match[2].lower() == "option" and not match[1]
    ]
    selected = [option for option in options if "selected" in option[0]]
    if not selected and "multiple" not in attributes:
        selected = [option for option in options if "disabled" not in option[0]][:1]
    values = [option.get("value", " ".join(text.split())) for option, text in selected]
    return "\0".join(values) if values else "\1"


def _parse_attributes(text: str) -> dict[str, str]:
    return {
        match[1].lower(): unescape(match[2] or match[3] or match[4] or "")
        for match in _ATTRIBUTE.finditer(text)
    }


@dataclass
class ReadForm:
    """A form as the user read it: its page, its key, and the version of its controls."""

    page: str
    key: str
    version: str


@dataclass
class PageState:
    """The current state of a page."""

    forms: list[Form] = field(default_factory=list)
    shown_object: Any = None
    status: int = 200

    def build_secret_marks(self) -> dict[str, str]:
        """Return the marks of the secrets of the object shown."""
        return {
            f"{SECRET_PREFIX}{name}": mark
            for name, mark in collect_secret_marks(self.shown_object).items()
        }


class DiscardedMessages(BaseStorage):
    """A message storage that discards messages, for pages that aren't shown."""

    def _get(self, *args: Any, **kwargs: Any) -> tuple[list[Any], bool]:
        return [], True

    def _store(self, messages: Any, response: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return []


def add_form_versions(view: View) -> View:
    """Add versions to the forms of a view's pages and check those that are posted."""

    @wraps(view)
    def versioned_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        call_view = partial(view, request, *args, **kwargs)
        if getattr(request, "reads_versions", False):
            return call_view()
        if request.method != "POST":
            shown_object = lambda: getattr(request, "shown_object", None)  # noqa: E731
            return _insert_versions(request, call_view(), shown_object)
        read_forms = list(_iterate_read_forms(request))
        # A form posted to another page, such as a preview, isn't saved there.
        posts_here = any(
            read_form.page.partition("?")[0] == request.path for read_form in read_forms
        )
        return _save_or_refuse(request, call_view, read_forms if posts_here else [])

    return versioned_view


def _save_or_refuse(
    request: HttpRequest, call_view: Callable[[], Any], read_forms: list[ReadForm]
) -> HttpResponseBase:
    differences = list(_find_differences(request, read_forms))
    if not differences:
        conflicts: list[VersionConflict] = []
        with object_version.open_scope():
            if read_forms:
                object_version.add_precondition(
                    partial(_check_locked_versions, request, read_forms, conflicts)
                )
            response = call_view()
        if not conflicts:
            return _refresh_versions(request, response)
        differences = list(_find_differences(request, read_forms))
    return _render_conflict(request, call_view, read_forms, differences)


def _render_conflict(
    request: HttpRequest,
    call_view: Callable[[], Any],
    read_forms: list[ReadForm],
    differences: list[Difference],
) -> HttpResponseBase:
    """Show the form again with the user's changes over the current values; write nothing."""
    # The view hasn't loaded the object yet if the difference was found before it was called.
    shown_object = _load_page(request, read_forms[0].page).shown_object
    request.shown_object = shown_object  # type: ignore[attr-defined]
    conflict = FormConflict(find_last_editor(request), differences)
    request.form_conflict = conflict  # type: ignore[attr-defined]
    posted: Any = request.POST
    merged_data = _merge_changes(posted, request, read_forms)
    request.POST = merged_data  # type: ignore[assignment]  # it has a setter
    original_messages: Any = getattr(request, "_messages", None)
    request._messages = DiscardedMessages(request)  # type: ignore[attr-defined]
    with object_version.open_scope():
        object_version.add_precondition(_raise_conflict)
        try:
            response = call_view()
        except VersionConflict:
            response = None
    is_form_shown = response is not None and response.status_code in (200, 400, 409)
    if not is_form_shown:  # the saved values replace the user's
        page_request = build_page_request(request, request.get_full_path())
        page_request.reads_versions = False
        page_request.form_conflict = None  # a message says it
        response = _get_response(page_request)
        page_request._messages = original_messages
    keeps_changes = is_form_shown and _has_unsaved_changes(request, merged_data, read_forms)
    request._messages = original_messages  # type: ignore[attr-defined]
    if not is_form_shown or not conflict.is_shown:
        messages.error(request, describe_conflict(conflict, keeps_changes))
    response.status_code = VersionConflict.status
    if not is_form_shown:
        return _insert_choices(request, response, conflict)
    notes = {
        key: render_field_conflicts(
            conflict.editor, [item for item in differences if item.form_key == key]
        )
        for key in {difference.form_key for difference in differences}
    }
    return _refresh_versions(request, response, notes)


def _insert_choices(
    request: HttpRequest, response: HttpResponseBase, conflict: FormConflict
) -> HttpResponseBase:
    """Add notes to a page with the saved values: the choices that the user made instead."""
    own_choices = [
        replace(difference, is_kept=False)
        for difference in conflict.differences
        if difference.user_values is not None and difference.control.kind in CHOSEN_AGAIN
    ]

    def insert_notes(rendered: Any) -> None:
        html = rendered.content.decode()
        for form in reversed(parse_forms(html, request.path)):
            differences = [item for item in own_choices if item.form_key == form.key]
            notes = render_field_conflicts(conflict.editor, differences)
            html = f"{html[: form.insert_at]}{notes}{html[form.insert_at :]}"
        rendered.content = html

    return run_after_render(response, insert_notes) if own_choices else response


def _has_unsaved_changes(request: HttpRequest, data: QueryDict, read_forms: list[ReadForm]) -> bool:
    """Return whether a posted form differs from what is saved now."""
    for read_form in read_forms:
        for form in _load_page(request, read_form.page).forms:
            if form.key == read_form.key and any(
                normalize_values(data.getlist(name)) != control.values
                for name, control in form.controls.items()
            ):
                return True
    return False


def _raise_conflict() -> None:
    raise VersionConflict({}, "")


def _check_locked_versions(
    request: HttpRequest, read_forms: list[ReadForm], conflicts: list[VersionConflict]
) -> None:
    """Lock the row and raise `VersionConflict` if it differs from what was read."""
    row = getattr(request, "shown_object", None)
    if row is None:  # a page of the organization or the user
        lock_rows(Organization.objects.filter(pk=resolve_principal(request).organization_id))
    else:
        lock_rows(type(row)._base_manager.filter(pk=row.pk))
    if differences := list(_find_differences(request, read_forms)):
        conflicts.append(VersionConflict({difference.name: None for difference in differences}, ""))
        raise conflicts[0]


# -- Differences -----------------------------------------------------------------------------------


def _iterate_read_forms(request: HttpRequest) -> Iterator[ReadForm]:
    """Yield the form versions in the request; skip those without a valid signature."""
    for text in request.POST.getlist(VERSION_FIELD)[:MAX_TOKENS]:
        try:
            page, key, version = signing.loads(text, salt=VERSION_SALT)
        except (signing.BadSignature, ValueError, TypeError):
            continue
        yield ReadForm(page, key, version)


def _find_differences(request: HttpRequest, read_forms: list[ReadForm]) -> Iterator[Difference]:
    """Yield the differences to what was read; skip pages that can't be shown any more."""
    pages = {read_form.page: _load_page(request, read_form.page) for read_form in read_forms}
    for read_form in read_forms:
        page = pages[read_form.page]
        if page.status != 200:
            continue
        form = next((form for form in page.forms if form.key == read_form.key), None)
        if form is None:
            yield Difference(Control("choice", _t("The page")), "", read_form.key)
            continue
        for name, mark in page.build_secret_marks().items():
            if not is_same_part(name, mark, read_form.version):
                label = name.removeprefix(SECRET_PREFIX)
                yield Difference(Control("secret", label), name, read_form.key)
        for name, control in form.controls.items():
            if has_part(name, read_form.version) and not is_same_part(
                name, control.values, read_form.version
            ):
                own_values = normalize_values(request.POST.getlist(name))
                changed_fields = (
                    not is_same_part(name, own_values, read_form.version)
                    and own_values != control.values
                )
                yield Difference(
                    control,
                    name,
                    read_form.key,
                    own_values if changed_fields else None,
                    is_kept=_keeps_own_values(name, form, own_values, read_form.version),
                )


def _merge_changes(posted: Any, request: HttpRequest, read_forms: list[ReadForm]) -> QueryDict:
    """Return the user's changes merged with the current values.

    If both changed a list, additions and removals of both are applied; for a text, the user's value
    is used. Choices and rows of inputs keep the current value, so the user must choose again.
    """
    merged_data = posted.copy()
    for read_form in read_forms:
        page = _load_page(request, read_form.page)
        form = next((form for form in page.forms if form.key == read_form.key), None)
        if form is None:
            continue
        changed_names = {
            name
            for name, control in form.controls.items()
            if not is_same_part(name, control.values, read_form.version)
        }
        row_prefixes = {_get_row_prefix(name, form.controls[name]) for name in changed_names} - {""}
        for name, control in form.controls.items():
            values = normalize_values(posted.getlist(name))
            is_own_change = not is_same_part(name, values, read_form.version)
            must_choose_again = name in changed_names and _is_chosen_again(control, values)
            if (
                not is_own_change
                or must_choose_again
                or _get_row_prefix(name, control) in row_prefixes
            ):
                merged_data.setlist(name, control.values)
            elif name in changed_names and control.kind in ("set", "lines"):
                merged_data.setlist(name, _merge_choices(control, name, values, read_form.version))
    return merged_data


def _is_chosen_again(control: Control, own_values: list[str]) -> bool:
    return control.kind in CHOSEN_AGAIN and own_values != DENIAL


def _keeps_own_values(name: str, form: Form, own_values: list[str], version: str) -> bool:
    """Return whether the form shows the user's values of a control that both changed."""
    control, prefix = form.controls[name], _get_row_prefix(name, form.controls[name])
    changed_rows = {
        _get_row_prefix(other_name, other)
        for other_name, other in form.controls.items()
        if not is_same_part(other_name, other.values, version)
    }
    is_in_changed_row = prefix and prefix in changed_rows
    return not _is_chosen_again(control, own_values) and not is_in_changed_row


def _merge_choices(control: Control, name: str, own_values: list[str], version: str) -> list[str]:
    """Return the current elements with the user's additions and removals applied."""
    current, posted = control.list_elements(control.values), control.list_elements(own_values)
    if not current and not posted:
        return own_values  # prose

    def was_read(element: str) -> bool:
        return is_same_part(build_element_key(name, element), True, version)

    added_elements = [
        element for element in posted if element not in current and not was_read(element)
    ]
    kept_elements = [element for element in current if element in posted or not was_read(element)]
    return (
        ["\n".join(kept_elements + added_elements)]
        if control.kind == "lines"
        else kept_elements + added_elements
    )


def _get_row_prefix(name: str, control: Control) -> str:
    """Return the common name prefix of the inputs of a row, blank for a single control."""
    row, _dash, column = name.rpartition("-")
    is_repeated = control.input_count > 1 and control.kind in ("text", "choice", "lines")
    first = name.partition("-")[0]
    return first if first in ROW_PREFIXES else row if is_repeated or column in PAIR_SUFFIXES else ""


# -- Pages -----------------------------------------------------------------------------------------


def _insert_versions(
    request: HttpRequest, response: HttpResponseBase, shown_object: Callable[[], Any]
) -> HttpResponseBase:
    """Add versions to the forms of a page once it is rendered."""

    def insert_inputs(rendered: Any) -> None:
        html = rendered.content.decode()
        page = PageState(parse_forms(html, request.path), shown_object())
        rendered.content = _insert_inputs(html, page.forms, page, request.get_full_path())

    return run_after_render(response, insert_inputs)


def _refresh_versions(
    request: HttpRequest, response: HttpResponseBase, notes: Mapping[str, str] | None = None
) -> HttpResponseBase:
    """Add the current versions to the forms of a response to a POST, and notes by form key."""

    def insert_inputs(rendered: Any) -> None:
        html = rendered.content.decode()
        if forms := parse_forms(html, request.path):
            path = request.get_full_path()
            page = _load_page(request, path)
            if page.status == 200:
                rendered.content = _insert_inputs(html, forms, page, path, notes or {})

    return run_after_render(response, insert_inputs)


def run_after_render(
    response: HttpResponseBase, callback: Callable[[Any], None]
) -> HttpResponseBase:
    """Call `callback` with an HTML response once it is rendered."""
    if response.streaming or not response.get("Content-Type", "").startswith("text/html"):
        return response
    if isinstance(response, SimpleTemplateResponse):
        response.add_post_render_callback(callback)
    elif isinstance(response, HttpResponse):
        callback(response)
    return response


def _insert_inputs(
    html: str, forms: list[Form], page: PageState, path: str, notes: Mapping[str, str] = NO_NOTES
) -> str:
    current_forms = {form.key: form for form in page.forms}
    for form in reversed(forms):
        if (current_form := current_forms.get(form.key)) is not None:
            version = compute_version(current_form.build_parts() | page.build_secret_marks())
            text = signing.dumps([path, form.key, version], salt=VERSION_SALT)
            hidden = format_html('<input type="hidden" name="{}" value="{}">', VERSION_FIELD, text)
            added = f"{hidden}{notes.get(form.key, '')}"
            html = f"{html[: form.insert_at]}{added}{html[form.insert_at :]}"
    return html


def _load_page(request: HttpRequest, address: str) -> PageState:
    """Render a page for the same user and parse its current state."""
    page_request = build_page_request(request, address)
    response = _get_response(page_request)
    if isinstance(response, SimpleTemplateResponse) and not response.is_rendered:
        response.render()
    shown_object = getattr(page_request, "shown_object", None)
    if response.status_code != 200 or response.streaming:
        return PageState(status=response.status_code or 500)
    return PageState(parse_forms(response.content.decode(), page_request.path), shown_object)


def build_page_request(request: HttpRequest, address: str) -> Any:
    """Return a GET request for a page by the same user, without messages."""
    page_request: Any = copy.copy(request)
    page_request.method, page_request.reads_versions, page_request.shown_object = "GET", True, None
    path, _mark, query = address.partition("?")
    page_request.META = request.META | {"REQUEST_METHOD": "GET", "QUERY_STRING": query}
    page_request.path = page_request.path_info = path
    page_request.GET = QueryDict(query)
    page_request.POST, page_request._files = QueryDict(), MultiValueDict()
    page_request._messages = DiscardedMessages(page_request)
    return page_request


def _get_response(page_request: Any) -> Any:
    match = resolve(page_request.path_info)
    page_request.resolver_match = match
    return match.func(page_request, *match.args, **match.kwargs)
