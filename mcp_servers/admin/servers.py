"""The list of servers: what is alive, what waits, and what can be done to many at once."""

from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import messages
from django.db.models import (
    Count,
    Exists,
    F,
    IntegerField,
    OuterRef,
    Prefetch,
    Q,
    QuerySet,
    Subquery,
)
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.lib.admin import (
    DropdownFilter,
    MultipleChoicesDropdownFilter,
    action,
    display,
    register,
)
from bonobot.lib.untrusted import visible
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import PagedAdmin, Visit
from bonobot.tenancy.templatetags.bonobot import ago, milliseconds
from mcp_servers import registration
from mcp_servers.admin import bulk, pool, rounds
from mcp_servers.admin.contact import contact, report
from mcp_servers.admin.removing import affected_by, confirm_removal
from mcp_servers.admin.timeline import timeline
from mcp_servers.history import DAY, first_asked, reaching_into, spans_of, unasked_spans
from mcp_servers.models import Check, Definition, Outage, Round, Server, Unasked
from mcp_servers.models.definitions import WAITING, DefinitionQuerySet
from mcp_servers.uptime import segments

HOURS = 24
WORDS_SOUGHT = 8


class WaitingFilter(DropdownFilter):
    """Servers with definitions that wait for approval."""

    title = _("definitions")
    parameter_name = "waiting"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices."""
        return [("yes", _("some wait for approval")), ("no", _("nothing waits"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Server]) -> QuerySet[Server]:
        """Keep what was chosen."""
        waits = Exists(_waiting())
        return {"yes": queryset.filter(waits), "no": queryset.exclude(waits)}.get(
            self.value(), queryset
        )


class ScopeFilter(DropdownFilter):
    """The organization's pool, or what belongs to one agent."""

    title = _("belongs to")
    parameter_name = "scope"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices."""
        return [("pool", _("the organization")), ("private", _("one agent"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Server]) -> QuerySet[Server]:
        """Keep what was chosen."""
        mine = Q(scope_id=F("organization_id"))
        return {"pool": queryset.filter(mine), "private": queryset.exclude(mine)}.get(
            self.value(), queryset
        )


@register(Server)
class ServerAdmin(PagedAdmin):
    """The registered servers of the active organization."""

    needs_to_change = Action.MANAGE_SERVERS
    list_display = (
        "server",
        "state",
        "tool_count",
        "waiting",
        "uptime",
        "seen",
        "latency",
        "switch",
    )
    changing_columns = {"switch": ""}
    list_filter = (
        ("status", MultipleChoicesDropdownFilter),
        ("transport_type", MultipleChoicesDropdownFilter),
        WaitingFilter,
        ScopeFilter,
    )
    search_fields = ("name", "description")  # and what they offer, see `get_search_results`
    search_help_text = _("Searches names, descriptions and what servers offer.")
    ordering = ("name",)
    actions = (
        "test_chosen",
        "refresh_chosen",
        "approve_chosen",
        "enable_chosen",
        "disable_chosen",
        "remove_chosen",
    )
    action_needs: ClassVar[dict[str, Action]] = {"approve_chosen": Action.APPROVE_DEFINITIONS}
    change_list_template = "admin/servers/list.html"
    # Ways to add a server: route, last part of the name, view. Rooms above add to them.
    ways: ClassVar[tuple[tuple[str, str, Callable[..., HttpResponseBase]], ...]] = (
        ("add/preset/", "presets", pool.presets_view),
        ("add/preset/<slug:slug>/", "preset", pool.preset_view),
        ("rounds/<uuid:round_id>/", "round", rounds.show),
        ("add/openapi/", "openapi", pool.openapi_view),
        ("add/operations/", "operations", pool.operations_view),
        ("add/operations/preview/", "operation_preview", pool.operation_preview_view),
    )

    def get_urls(self) -> list[URLPattern]:
        """Add the ways to add a server."""
        found = [
            path(route, self.admin_site.admin_view(view), name=self._name(name))
            for route, name, view in self.ways
        ]
        return [*found, *super().get_urls()]

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show our own form."""
        return pool.form_view(request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Server]:
        """Return the servers; they can be sorted and filtered by the counts that the list shows."""
        tools, waiting = _definitions().tools().filter(present=True), _waiting()
        return (
            super()
            .get_queryset(request)
            .prefetch_related(_outages(), _gaps())
            .alias(tool_total=_counted(tools), waiting_count=_counted(waiting))
        )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Server], search_term: str
    ) -> tuple[QuerySet[Server], bool]:
        """Keep the servers that have every word in their name, description or a definition."""
        catalogue = Definition.objects.for_organization(self.principal(request).organization_id)
        for word in search_term.split()[:WORDS_SOUGHT]:
            # Looked for once, not for each server: the catalogue is the longest table of all.
            offering = catalogue.filter(name__icontains=word).order_by().values("server")
            queryset = queryset.filter(
                Q(name__icontains=word) | Q(description__icontains=word) | Q(pk__in=offering)
            )
        return queryset, False

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Count the tools, and what waits, of the servers on the page alone, in one query."""
        found = super().get_changelist_instance(request)
        page = found.result_list = list(found.result_list)
        counted = Definition.objects.filter(server__in=page).order_by().values("server")
        counts = {
            row["server"]: row
            for row in counted.annotate(
                tools=Count("pk", filter=Q(kind=Definition.Kind.TOOL, present=True)),
                waiting=Count("pk", filter=WAITING),
            )
        }
        for server in page:
            row = counts.get(server.pk)
            server.tool_total = row["tools"] if row else 0
            server.waiting_count = row["waiting"] if row else 0
        return found

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Leave out Django's own deletion: ours says what is affected."""
        found = super().get_actions(request)
        found.pop("delete_selected", None)
        return found

    def has_approve_permission(self, request: HttpRequest) -> bool:
        """Tell who may approve definitions."""
        return self.may(request, Action.APPROVE_DEFINITIONS)

    # -- Columns ---------------------------------------------------------------------------------

    @display(description=_("server"), ordering="name", header=True)
    def server(self, server: Server) -> tuple[str, str]:
        """Return the name, how it is reached and what it is for."""
        about = server.description or server.endpoint_config.get("url") or _command(server)
        own = _t("private to an agent · ") if server.private_to_agent else ""
        by = server.get_transport_type_display()
        return visible(server.name), f"{by} · {own}{visible(about, 80)}"

    @display(description=_("status"), ordering="status")
    def state(self, server: Server) -> str:
        """Return the badge; its title tells the last error."""
        return state_badge(server)

    @display(description=_("tools"), ordering="tool_total")
    def tool_count(self, server: Any) -> int:
        """Return how many tools it offers."""
        return int(server.tool_total)

    @display(description=_("waiting"), ordering="waiting_count")
    def waiting(self, server: Any) -> str:
        """Return how many definitions wait, as a way to them."""
        return render_to_string("admin/servers/waiting.html", {"server": server})

    @display(description=_("last 24 hours"))
    def uptime(self, server: Any) -> str:
        """Return when it was there, as a picture."""
        now = timezone.now()
        spans, known = spans_of(server.latest_outages), first_asked(server)
        unknown = unasked_spans(server, now, server.latest_gaps)
        pieces = segments(spans, now - DAY, now, HOURS, known=known, unknown=unknown)
        return timeline(pieces, tiny=True)

    @display(description=_("last connected"), ordering="last_connected_at")
    def seen(self, server: Server) -> Any:
        """Return when it last answered."""
        return ago(server.last_connected_at)

    @display(description=_("latency"), ordering="latency_ms")
    def latency(self, server: Server) -> str:
        """Return how long its last answer took."""
        return milliseconds(server.latency_ms)

    @display(description=_("on"), ordering="enabled")
    def switch(self, server: Server) -> str:
        """Return the switch."""
        return render_to_string("admin/servers/switch.html", {"server": server})

    # -- Deeds upon many -------------------------------------------------------------------------

    @action(description=_("Test the connection"), permissions=["change"])
    def test_chosen(
        self, request: HttpRequest, queryset: QuerySet[Server]
    ) -> HttpResponseBase | None:
        """Ask each chosen server, and say what came of it."""
        return self._contact(request, queryset, Check.Kind.TEST, Round.Kind.TEST)

    @action(description=_("Refresh what they offer"), permissions=["change"])
    def refresh_chosen(
        self, request: HttpRequest, queryset: QuerySet[Server]
    ) -> HttpResponseBase | None:
        """Discover each chosen server again."""
        return self._contact(request, queryset, Check.Kind.DISCOVERY, Round.Kind.REFRESH)

    @action(description=_("Approve what waits …"), permissions=["approve"])
    def approve_chosen(
        self, request: HttpRequest, queryset: QuerySet[Server]
    ) -> HttpResponseBase | None:
        """Ask with what waits at the chosen servers; then approve just that."""
        return bulk.approve_what_waits(self, request, list(queryset))

    @action(description=_("Switch on"), permissions=["change"])
    def enable_chosen(
        self, request: HttpRequest, queryset: QuerySet[Server]
    ) -> HttpResponseBase | None:
        """Switch the chosen servers on."""
        chosen = list(queryset)
        if len(chosen) > rounds.AT_ONCE:
            return rounds.set_out(request, Round.Kind.ENABLE, chosen)
        for server in chosen:
            registration.switch(self.principal(request), server, enabled=True)
        messages.success(request, _t("%(n)d servers are on.") % {"n": len(chosen)})
        return None

    @action(description=_("Switch off …"), permissions=["change"])
    def disable_chosen(
        self, request: HttpRequest, queryset: QuerySet[Server]
    ) -> HttpResponseBase | None:
        """Ask with who loses them; then switch off: it holds on the very next call."""
        return bulk.switch_off(self, request, list(queryset))

    @action(description=_("Remove…"), permissions=["delete"])
    def remove_chosen(
        self, request: HttpRequest, queryset: QuerySet[Server]
    ) -> HttpResponseBase | None:
        """Ask first, with what else goes; then remove."""
        chosen = list(queryset)
        if "confirmed" not in request.POST:
            return confirm_removal(self, request, [affected_by(server) for server in chosen])
        if len(chosen) > rounds.AT_ONCE:
            return rounds.set_out(request, Round.Kind.REMOVE, chosen)
        for server in chosen:
            registration.remove(self.principal(request), server)
        messages.success(request, _t("%(n)d servers were removed.") % {"n": len(chosen)})
        return HttpResponseRedirect(reverse("admin:mcp_servers_server_changelist"))

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Ask first, with what else goes; then remove."""
        principal = self.principal(request)
        server = self.find(request, object_id)
        principal.require(Action.MANAGE_SERVERS)
        if request.method != "POST":
            return confirm_removal(self, request, [affected_by(server)])
        registration.remove(principal, server)
        messages.success(request, _t("%(server)s was removed.") % {"server": server})
        return HttpResponseRedirect(reverse("admin:mcp_servers_server_changelist"))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the list with what is being done to many of its servers."""
        going = rounds.under_way(request)
        return super().changelist_view(request, {**(extra_context or {}), "rounds": going})

    def _contact(
        self, request: HttpRequest, queryset: QuerySet[Server], kind: str, many: str
    ) -> HttpResponseBase | None:
        chosen = list(queryset)
        if len(chosen) > rounds.AT_ONCE:
            return rounds.set_out(request, many, chosen)
        report(request, contact(chosen, actor=self.principal(request).actor, kind=kind))
        return None


def state_badge(server: Server) -> SafeString:
    """Return the server's status as a badge."""
    context = {"server": server}
    return render_to_string("admin/servers/state.html", context)


def _outages() -> Prefetch:
    """Return what the picture of the last day needs, in one query for all servers."""
    rows = Outage.objects.filter(reaching_into(timezone.now() - DAY))
    return Prefetch("outages", rows, to_attr="latest_outages")


def _gaps() -> Prefetch:
    """Return when nobody asked in the last day, in one query for all servers."""
    rows = Unasked.objects.filter(ended_at__gt=timezone.now() - DAY)
    return Prefetch("unasked", rows, to_attr="latest_gaps")


def _definitions() -> DefinitionQuerySet:
    """Return the definitions of the server that a query is about."""
    found: DefinitionQuerySet = Definition.objects.filter(server=OuterRef("pk")).order_by()
    return found


def _waiting() -> DefinitionQuerySet:
    """Return those that wait; with the organization named, for the index of what waits."""
    return _definitions().waiting().filter(organization=OuterRef("organization"))


def _counted(rows: QuerySet[Definition]) -> Coalesce:
    counted = rows.values("server").annotate(n=Count("pk")).values("n")
    return Coalesce(Subquery(counted, output_field=IntegerField()), 0)


def _command(server: Server) -> str:
    config = server.endpoint_config
    return " ".join([config.get("command", ""), *config.get("args", ())])


@ServerAdmin.add_deed("test", needs=Action.MANAGE_SERVERS)
def test(visit: Visit) -> None:
    """Ask the server now."""
    found = contact([visit.object], actor=visit.principal.actor, kind=Check.Kind.TEST)
    report(visit.request, found)


@ServerAdmin.add_deed("refresh", needs=Action.MANAGE_SERVERS)
def refresh(visit: Visit) -> None:
    """Discover the server again."""
    found = contact([visit.object], actor=visit.principal.actor, kind=Check.Kind.DISCOVERY)
    report(visit.request, found)
