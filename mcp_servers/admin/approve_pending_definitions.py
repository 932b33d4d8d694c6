"""The page that confirms "Approve pending definitions…": what is pending review on several servers.

New definitions without findings are approved. Changed ones are shown with their difference and are
approved only if they are selected. Those with findings are reviewed on the page of their server.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import ngettext as _n

from bonobot.accounts.admin_base.responses import change_each, redirect_back, render_screen
from bonobot.accounts.current_organization import resolve_principal
from bonobot.core.i18n.localization import format_number
from mcp_servers.admin import bulk_actions
from mcp_servers.admin.definition_diff import FieldDiff, diff_definitions
from mcp_servers.admin.risk_groups import RiskGroup, group_by_risk
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.flow_labels.effective_labels import load_label_context
from mcp_servers.models import BulkJob, Definition, Server

MAX_CHANGED_SHOWN = 200


@dataclass(frozen=True)
class ChangedDefinition:
    """A changed definition with its difference; `seen` is what an approval is bound to."""

    row: Definition
    difference: list[FieldDiff]
    seen: str


@dataclass
class PendingReview:
    """The definitions of a server that are pending review.

    `new` are approved; `flagged` have findings; `hidden_count` of the changed ones aren't shown.
    """

    server: Server
    new: list[Definition] = field(default_factory=list)
    flagged: list[Definition] = field(default_factory=list)
    changed: list[ChangedDefinition] = field(default_factory=list)
    hidden_count: int = 0

    @property
    def total(self) -> int:
        return len(self.new) + len(self.flagged) + len(self.changed) + self.hidden_count

    @property
    def groups(self) -> list[RiskGroup]:
        """The new definitions by risk."""
        return group_by_risk(self.new, load_label_context(self.server))

    def list_digests(self) -> dict[UUID, str]:
        """Return the digests of the definitions that can be approved here."""
        return {row.pk: row.digest for row in (*self.new, *(item.row for item in self.changed))}

    def select_digests(self, seen: set[str]) -> dict[UUID, str]:
        """Return the digests of the new definitions and of the selected changed ones."""
        selected = [item.row for item in self.changed if item.seen in seen]
        return {row.pk: row.digest for row in (*self.new, *selected)}


def hash_digests(pending: Iterable[dict[UUID, str]]) -> str:
    """Return a hash of these definitions and their digests."""
    lines = sorted(f"{pk}:{digest}" for digests in pending for pk, digest in digests.items())
    return sha256("\n".join(lines).encode()).hexdigest()


def load_pending_reviews(servers: Sequence[Server]) -> list[PendingReview]:
    """Return what is pending review on each server (two queries)."""
    reviews = {server.pk: PendingReview(server) for server in servers}
    pending = Definition.objects.awaiting_review().filter(server__in=reviews)
    changed_rows: list[Definition] = []
    for row in pending.order_by("kind", "name").defer("pinned"):  # as long as `payload`
        if row.findings:
            reviews[row.server_id].flagged.append(row)
        elif row.pinned_digest:
            changed_rows.append(row)
        else:
            reviews[row.server_id].new.append(row)
    shown_rows = changed_rows[:MAX_CHANGED_SHOWN]
    approved = dict(
        Definition.objects.filter(pk__in=[row.pk for row in shown_rows]).values_list("pk", "pinned")
    )
    for row in shown_rows:
        difference = diff_definitions(approved.get(row.pk) or {}, row.payload)
        changed = ChangedDefinition(row, difference, f"{row.pk}:{row.digest}")
        reviews[row.server_id].changed.append(changed)
    for row in changed_rows[MAX_CHANGED_SHOWN:]:
        reviews[row.server_id].hidden_count += 1
    return list(reviews.values())


def render_confirmation(
    admin: Any, request: HttpRequest, name: str, servers: Sequence[Server]
) -> HttpResponseBase:
    """Render the pending definitions of these servers, to select changed ones and to approve."""
    reviews = load_pending_reviews(servers)
    return render_screen(
        request,
        "definitions/approve_pending.html",
        title=_t("Approve pending definitions"),
        affected=reviews,
        opts=admin.opts,
        action=name,
        has_effect=any(review.list_digests() for review in reviews),
        confirmed=hash_digests(review.list_digests() for review in reviews),
    )


def approve_confirmed(request: HttpRequest, servers: Sequence[Server]) -> HttpResponseBase | None:
    """Approve the confirmed definitions; they are confirmed again if others are pending now."""
    reviews = load_pending_reviews(servers)
    if request.POST.get("confirmed") != hash_digests(review.list_digests() for review in reviews):
        messages.warning(request, _t("Other definitions are pending now. Confirm them again."))
        # To the confirmation, whose URL may stand for more servers than a URL could have.
        url = bulk_actions.redirect_to_confirmation(request, "approve_chosen").url
        return redirect_back(request, url)
    seen = set(request.POST.getlist("seen"))
    digests = {review.server.pk: review.select_digests(seen) for review in reviews}
    approvable = [review.server for review in reviews if digests[review.server.pk]]
    total = sum(review.total for review in reviews)
    _add_remaining_message(request, total - sum(map(len, digests.values())))
    if len(approvable) > bulk_actions.IMMEDIATE_LIMIT:
        details = {
            server.pk: {str(pk): digest for pk, digest in digests[server.pk].items()}
            for server in approvable
        }
        return bulk_actions.start_job_and_redirect(
            request, BulkJob.Kind.APPROVE, approvable, details
        )
    approved = 0

    def approve(server: Server) -> None:
        nonlocal approved
        result = approve_definitions(resolve_principal(request), server, digests[server.pk])
        approved += len(result.approved)

    change_each(request, approvable, approve)
    if approved:
        text = _n("%(n)s definition approved.", "%(n)s definitions approved.", approved)
        messages.success(request, text % {"n": format_number(approved)})
    return None


def _add_remaining_message(request: HttpRequest, count: int) -> None:
    if count > 0:
        text = _n(
            "%(n)s definition is still pending review: it has findings, or changed and wasn't "
            "selected.",
            "%(n)s definitions are still pending review: they have findings, or changed and "
            "weren't selected.",
            count,
        )
        messages.warning(request, text % {"n": format_number(count)})
