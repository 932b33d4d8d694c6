"""Saved filters of the audit log, personal or shared with the organization."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from agents.models import SavedFilter
from agents.models.saved_filters import MAX_NAME_LENGTH, MAX_QUERY_LENGTH
from bonobot.accounts.models import User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_row
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.ledger.audit.admin_changes import describe_row, record_change

MAX_FILTERS = 50
# Query parameters that are not part of a filter: page, export format, Django admin flags.
IGNORED_PARAMETERS = frozenset({"p", "form", "e", "all", "_changelist_filters"})


def normalize_query(query: str) -> str:
    """Return the filters, search and order of a query string, sorted by name."""
    pairs = parse_qsl(query, max_num_fields=100)
    return urlencode(sorted(pair for pair in pairs if pair[0] not in IGNORED_PARAMETERS))


def list_filters(principal: Principal) -> QuerySet[SavedFilter]:
    """Return a person's own filters and those shared with the organization."""
    rows: Any = SavedFilter.objects.for_organization(principal.organization_id)
    if principal.kind != "user":
        no_filters: QuerySet[SavedFilter] = rows.none()
        return no_filters
    visible_filters = rows.filter(Q(owner_id=UUID(principal.id)) | Q(shared=True)).select_related(
        "owner"
    )
    return visible_filters.order_by("name", "pk")


def save_filter(principal: Principal, name: str, query: str, *, shared: bool) -> SavedFilter:
    """Save a filter under a name, replacing one's own filter of that name.

    Raises `InvalidInput`, `Conflict` (`too_many_filters`), and `Forbidden` for tokens.
    """
    principal.require(Action.VIEW_AUDIT)
    if principal.kind != "user":
        raise Forbidden("Only users can save filters.", rule="person")
    name, saved_query = name.strip(), _clean_query(query)
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise InvalidInput(
            format_message("The name has {count} characters.", count=len(name)),
            field="name",
            remedy=format_message(
                "Use a name of 1 to {longest_name} characters.", longest_name=MAX_NAME_LENGTH
            ),
        )
    own_filters = SavedFilter.objects.for_organization(principal.organization_id).filter(
        owner_id=UUID(principal.id)
    )
    row = own_filters.filter(name=name).first()
    is_new = row is None
    if row is None:
        row = SavedFilter(
            organization_id=principal.organization_id, owner_id=UUID(principal.id), name=name
        )
    is_audited = shared or row.shared
    row.query, row.shared = saved_query, shared
    change = _record_change(
        principal, row, "audit_filter_saved", {"query": saved_query}, audited=is_audited
    )
    with transaction.atomic(), change:
        if is_new:
            lock_row(User(pk=UUID(principal.id)))
            _check_filter_limit(own_filters)
        row.save()
    return row


def _check_filter_limit(own_filters: Any) -> None:
    if own_filters.count() >= MAX_FILTERS:
        raise Conflict(
            format_message(
                "You have {most} saved filters, which is the maximum.", most=MAX_FILTERS
            ),
            code="too_many_filters",
            remedy="Delete a filter first.",
        )


def delete_filter(principal: Principal, row: SavedFilter) -> None:
    """Delete one's own filter, or a shared one as a manager of the organization."""
    if str(row.owner_id) != principal.id:
        principal.require(Action.MANAGE_ORGANIZATION)
    with _record_change(
        principal, row, "audit_filter_deleted", {"query": row.query}, audited=row.shared
    ):
        row.delete()


def can_delete_filter(principal: Principal, row: SavedFilter) -> bool:
    return str(row.owner_id) == principal.id or principal.may(Action.MANAGE_ORGANIZATION)


def _clean_query(query: str) -> str:
    try:
        cleaned = normalize_query(query)
    except ValueError:
        cleaned = "x" * (MAX_QUERY_LENGTH + 1)
    if not cleaned:
        raise InvalidInput(
            "The list has no filter, search, or sort order.",
            field="query",
            remedy="Filter, search, or sort the list first, then save the filter.",
        )
    if len(cleaned) > MAX_QUERY_LENGTH:
        raise InvalidInput("The filter is too long.", field="query", remedy="Use fewer filters.")
    return cleaned


def _record_change(
    principal: Principal,
    row: SavedFilter,
    action: str,
    details: Mapping[str, Any],
    *,
    audited: bool,
) -> AbstractContextManager[Any]:
    """Record changes of shared filters; personal ones are not audited."""
    if not audited:
        return nullcontext()
    return record_change(
        **describe_row("saved_filter", row),
        actor=principal.actor,
        action=action,
        details=dict(details),
        governed=False,
    )
