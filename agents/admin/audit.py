"""The audit: every call and every change, read-only, with its decision, arguments and outcome."""

import json
from typing import Any
from uuid import UUID

from django.contrib.admin import FieldListFilter
from django.contrib.admin import ModelAdmin as DjangoModelAdmin
from django.db.models import Field, QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin import audit_checking, audit_filters, audit_searching
from bonobot.ledger import searching
from bonobot.ledger.exporting import Form
from bonobot.ledger.models import AuditRow
from bonobot.lib.admin import (
    ChoicesDropdownFilter,
    DropdownFilter,
    FieldTextFilter,
    MultipleChoicesDropdownFilter,
    display,
    register,
)
from bonobot.lib.problems import NotFound
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from bonobot.tenancy.downloads import download
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import ScopedAdmin, screen
from bonobot.tenancy.templatetags.bonobot import ago, badge_html, milliseconds

KINDS = (
    ("call", _("calls of tools")),
    ("model", _("model turns")),
    ("change", _("changes")),
    ("approval", _("approvals")),
    ("connection", _("connections")),
)


class KindFilter(DropdownFilter):
    """Calls, model turns, changes and answers of people, or how servers came and went."""

    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: DjangoModelAdmin) -> Any:
        """Return the choices."""
        return KINDS

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditRow]) -> QuerySet[AuditRow]:
        """Keep what was chosen."""
        kind = self.value()
        return queryset.filter(event_type=kind) if kind in dict(KINDS) else queryset


# What columns of the ledger, which has no words for people, are called above their filters.
COLUMNS = {
    "outcome": _("outcome"),
    "decision": _("decision"),
    "code": _("code"),
    "agent_name": _("agent"),
    "server_name": _("server"),
    "tool_name": _("tool"),
}


class _Called(FieldListFilter):
    """A filter that is called as people call its column."""

    def __init__(self, field: Field, *args: Any, **kwargs: Any) -> None:
        super().__init__(field, *args, **kwargs)
        self.title = COLUMNS[field.name]


class OutcomeFilter(_Called, MultipleChoicesDropdownFilter):
    """What came of it; several at once."""


class DecisionFilter(_Called, ChoicesDropdownFilter):
    """What was decided."""


class Copied(_Called, FieldTextFilter):
    """A copied name, looked for by a part of it."""


def action_name(code: str) -> str:
    """Return what an action is called; the catalogue has each that the sources record."""
    return _t(code.replace("_", " "))


@register(AuditRow)
class AuditAdmin(ScopedAdmin):
    """The active organization's audit rows."""

    needs_to_view = (Action.VIEW_AUDIT,)
    list_display = ("when", "result", "what", "on_what", "agent", "server", "who", "took")
    list_display_links = ("when",)
    list_filter = (
        ("outcome", OutcomeFilter),
        KindFilter,
        ("decision", DecisionFilter),
        ("code", Copied),
        ("agent_name", Copied),
        ("server_name", Copied),
        ("tool_name", Copied),
        ("opened_at", audit_searching.AskedFilter),
    )
    search_fields = searching.COLUMNS
    search_help_text = _("Searches names, codes and arguments.")
    ordering = ("-opened_at", "-seq")
    list_per_page = 50
    actions = None
    list_before_template = "admin/audit/tools.html"
    empty_icon = "receipt_long"
    empty_text = _("Every call, every change and every sign-in is written here as it happens.")

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditRow]:
        """Return the organization's rows; the long texts only where they are shown."""
        organization_id = self.principal(request).organization_id
        return AuditRow.objects.of(organization_id).defer("opened", "closed")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditRow], search_term: str
    ) -> tuple[QuerySet[AuditRow], bool]:
        """Return what fits, of as many of the latest rows as the list looks through for it."""
        rows = queryset.filter(searching.containing(search_term))
        if not getattr(request, "exporting", False):
            where = self.principal(request).organization_id
            rows = audit_searching.within_reach(request, where, rows)
        return rows, False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """Allow the links of other pages: everything of one server, agent, session or object."""
        mine = {"server_id", "agent_id", "session_id", "resource_id", "parent_id", "action", "rule"}
        return lookup in mine or super().lookup_allowed(lookup, value, request)

    def get_urls(self) -> list[Any]:
        """Add the download of what the list shows, and the keeping of filters."""
        export = self.admin_site.admin_view(self.export)
        guards = (self.admin_site.admin_view, self.principal)
        others = [*audit_filters.addresses(*guards), *audit_checking.addresses(*guards)]
        mine = [path("export/", export, name="ledger_auditrow_export"), *others]
        return [*mine, *super().get_urls()]

    def export(self, request: HttpRequest) -> HttpResponseBase:
        """Return the rows that the list's filters and search leave, as a file."""
        self.principal(request).require(Action.VIEW_AUDIT)
        asked = request.GET.copy()
        form: Form = "csv" if "".join(asked.pop("form", [])) == "csv" else "jsonl"
        request.GET = asked  # type: ignore[assignment]  # a copy, which may be changed
        request.exporting = True  # type: ignore[attr-defined]  # a file holds all that fits
        rows = self.get_changelist_instance(request).get_queryset(request)
        return download(rows.defer(None), form)

    @display(description=_("when"), ordering="opened_at")
    def when(self, row: AuditRow) -> Any:
        """Return when it was asked for."""
        return ago(row.opened_at)

    @display(description=_("outcome"), ordering="outcome")
    def result(self, row: AuditRow) -> Any:
        """Return the outcome, with the code where there is one."""
        return badge_html(row.outcome, row.code or row.outcome, row.rule)

    @display(description=_("action"), ordering="action")
    def what(self, row: AuditRow) -> SafeString:
        """Return what was done, with its code."""
        return format_html('<span title="{}">{}</span>', row.action, action_name(row.action))

    @display(description=_("on"), ordering="resource_name")
    def on_what(self, row: AuditRow) -> str:
        """Return what it was done to."""
        name = row.tool_name or row.resource_name or row.resource_id
        times = f" ×{row.repeats + 1}" if row.repeats else ""
        return visible(name, 80) + times

    @display(description=_("agent"), ordering="agent_name")
    def agent(self, row: AuditRow) -> str:
        """Return the agent."""
        return visible(row.agent_name, 60) or "–"

    @display(description=_("server"), ordering="server_name")
    def server(self, row: AuditRow) -> str:
        """Return the server."""
        return visible(row.server_name, 60) or "–"

    @display(description=_("who"), ordering="actor_label")
    def who(self, row: AuditRow) -> str:
        """Return who asked."""
        return visible(f"{row.actor_kind}: {row.actor_label or row.actor_id}", 60)

    @display(description=_("took"), ordering="duration_ms")
    def took(self, row: AuditRow) -> str:
        """Return how long it took."""
        return milliseconds(row.duration_ms)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show the list with its downloads and the filters that were kept."""
        forms = (("jsonl", _("Export JSON Lines")), ("csv", _("Export CSV")))
        saved = audit_filters.panel(self.principal(request), request.GET.urlencode())
        verified = audit_checking.standing(request, self.principal(request))
        mine = {"export_forms": forms, "saved": saved, "verified": verified}
        shown = super().changelist_view(request, {**(extra_context or {}), **mine})
        if isinstance(shown, TemplateResponse) and shown.context_data is not None:
            shown.context_data["further"] = audit_searching.further(request)
        return shown

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseBase:
        """Show one row with both of its sealed texts."""
        principal = self.principal(request)
        principal.require(Action.VIEW_AUDIT)
        row = self._find(principal.organization_id, object_id)
        return screen(
            request,
            "audit/row.html",
            title=f"{action_name(row.action)}: {row.resource_name or row.tool_name}",
            row=row,
            action=action_name(row.action),
            opts=self.opts,
            opened=_parsed(row.opened),
            closed=_parsed(row.closed),
            links=_links(row),
        )

    def _find(self, organization_id: UUID, object_id: str) -> AuditRow:
        try:
            found = AuditRow.objects.of(organization_id).filter(pk=UUID(object_id)).first()
        except ValueError:
            found = None
        if found is None:
            raise NotFound(say("There is no audit row {object_id!r} here.", object_id=object_id))
        return found


def _parsed(text: str) -> Any:
    return json.loads(text) if text else None


def _links(row: AuditRow) -> dict[str, str]:
    """Return where the things that the row names are; they may be gone by now."""
    addresses = {
        "agent": ("agents_agent_change", row.agent_id),
        "server": ("mcp_servers_server_change", row.server_id),
        "session": ("agents_session_change", row.session_id),
        "parent": ("ledger_auditrow_change", row.parent_id),
    }
    return {
        name: reverse(f"admin:{address}", args=[pk])
        for name, (address, pk) in addresses.items()
        if pk
    }
