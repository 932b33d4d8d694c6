"""Versions of admin lists and pages, to detect changes of objects since they were loaded.

The version is the signed position of the organization's audit log, in which each change of an
object is an entry. An action on a list, such as a bulk deletion, or the button of an object's page,
such as *Enforce draft*, is refused if the object was changed after that. The current list or page
is shown with who changed it. Pages that confirm an action carry the version of the list on.
"""

import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from django.core import signing
from django.db.models import UUIDField
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.html import format_html
from django.utils.translation import gettext as _t

from bonobot.accounts.admin_base.form_versions import run_after_render
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.templatetags.display import error_code
from bonobot.core.db import object_version
from bonobot.core.db.object_version import VersionConflict
from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.actor_names import get_actor_name
from bonobot.ledger.audit.action_titles import format_action
from bonobot.ledger.audit.search import query_object_changes
from bonobot.ledger.models import AuditRow
from bonobot.ledger.models.audit import Head

LIST_VERSION_FIELD = "_list_version"
VERSION_SALT = "bonobot.list_version"
MAX_SHOWN, MAX_NAME_LENGTH = 5, 80
_FORM_WITH_ROWS = re.compile(r"<form\b[^>]*>(?=(?:(?!</form>).)*\b_selected_action\b)", re.S)


def read_list_version(request: HttpRequest) -> str:
    """Return the version of a list or a page; the first call must be before the rows are read."""
    cached_version: str | None = getattr(request, "list_version", None)
    if cached_version is not None:
        return cached_version
    version = _read_audit_position(request)
    request.list_version = version  # type: ignore[attr-defined]
    return version


_LATEST_ENTRY = PreparedQuery(
    lambda: Head.objects.filter(
        organization_id=QueryParameter("organization", output_field=UUIDField())
    ).values_list("seq")
)


def _read_audit_position(request: HttpRequest) -> str:
    try:
        organization_id = resolve_principal(request).organization_id
    except Problem:
        return ""  # no organization yet
    row = _LATEST_ENTRY.fetch_first(organization=organization_id)
    return signing.dumps([str(organization_id), row[0] if row else 0], salt=VERSION_SALT)


def insert_list_version(response: HttpResponseBase, version: str) -> HttpResponseBase:
    """Add the version to the forms with selected rows, of a list or of a confirmation."""
    hidden = format_html('<input type="hidden" name="{}" value="{}">', LIST_VERSION_FIELD, version)

    def insert_inputs(rendered: Any) -> None:
        html = rendered.content.decode()
        rendered.content = _FORM_WITH_ROWS.sub(lambda match: f"{match[0]}{hidden}", html)

    return run_after_render(response, insert_inputs) if version else response


def describe_list_changes(request: HttpRequest, names_by_id: Mapping[str, str]) -> str:
    """Return which of these objects were changed since the list was loaded, and by whom.

    Blank if there is none, or if the request has no valid version. The check is repeated in the
    transaction of the first change.
    """
    try:
        version = signing.loads(request.POST.get(LIST_VERSION_FIELD, ""), salt=VERSION_SALT)
        organization_id, seq = version
    except (signing.BadSignature, ValueError, TypeError):
        return ""
    if organization_id != str(resolve_principal(request).organization_id):
        return ""
    object_version.add_precondition(partial(_check_unchanged, request, names_by_id.keys(), seq))
    entries = {entry.resource_id: entry for entry in _query_changes(request, names_by_id, seq)}
    if not entries:
        return ""
    texts = [_describe_entry(names_by_id[row_id], entry) for row_id, entry in entries.items()]
    if (count := len(texts) - MAX_SHOWN) > 0:
        texts[MAX_SHOWN:] = [_t("%(n)s more") % {"n": count}]
    text = _t(
        "Nothing was done. Changed since the page was loaded: %(changes)s. Review it, then try "
        "again."
    ) % {"changes": "; ".join(texts)}
    return format_html("{} {}", text, error_code(VersionConflict.code))


def _describe_entry(name: str, entry: AuditRow) -> str:
    actor_name = get_actor_name(entry.actor_kind, entry.actor_id, entry.actor_label)
    editor = make_visible(actor_name, MAX_NAME_LENGTH)
    return f"{make_visible(name, MAX_NAME_LENGTH)}: {format_action(entry.action)} ({editor})"


def _query_changes(request: HttpRequest, row_ids: Collection[str], seq: int) -> Any:
    organization_id = resolve_principal(request).organization_id
    return query_object_changes(organization_id, row_ids).filter(seq__gt=seq).order_by("seq")


def _check_unchanged(request: HttpRequest, row_ids: Collection[str], seq: int) -> None:
    if _query_changes(request, row_ids, seq).exists():
        raise VersionConflict({}, "")
