"""The admin of servers: list, filters, bulk actions, test and refresh."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin.views.main import ORDER_VAR
from django.db.models import (
    Case,
    Count,
    Exists,
    F,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    When,
)
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponseRedirect, QueryDict
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from bonobot.accounts.admin_base import (
    ObjectRequest,
    TabbedAdmin,
    TabGroup,
    format_problem,
    redirect_to_page,
)
from bonobot.accounts.admin_base.form_versions import build_page_request
from bonobot.accounts.admin_base.list_versions import insert_list_version, read_list_version
from bonobot.accounts.admin_base.responses import add_deleted_message, change_each
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models.abstract_models import MAX_COUNTED
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import ago, counted, milliseconds
from bonobot.core.admin.theme import (
    ChangeList,
    ChoicesCheckboxFilter,
    DropdownFilter,
    action,
    display,
    register,
)
from bonobot.core.i18n.localization import format_number
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers import services
from mcp_servers.admin import (
    approve_pending_definitions,
    bulk_actions,
    declared_operations,
    openapi,
)
from mcp_servers.admin.add_servers import ServerDestination, add_by_form
from mcp_servers.admin.bulk_actions import collect_impact, confirm_removal
from mcp_servers.admin.preset_gallery import add_by_preset, choose_preset
from mcp_servers.admin.uptime_bar import render_uptime_bar
from mcp_servers.definition_counts import count_definitions
from mcp_servers.discovery import DiscoveryAttempt, DiscoveryResult, discover_servers
from mcp_servers.health.server_status import FAILING_STATES
from mcp_servers.health.uptime_windows import build_last_day, prefetch_last_day
from mcp_servers.models import BulkJob, Definition, HealthCheck, Server
from mcp_servers.models.definitions import DefinitionQuerySet

ROUTE_NAMES = {"form": "add"}  # other routes have the name of the method
MAX_SEARCH_WORDS = 8
# The kinds of definitions on the pages that list them; every kind is on one of them.
KINDS_OF_PAGES = {
    "tools": (Definition.Kind.TOOL,),
    "resources": (
        Definition.Kind.RESOURCE,
        Definition.Kind.RESOURCE_TEMPLATE,
        Definition.Kind.SKILL,
    ),
    "prompts": (Definition.Kind.PROMPT, Definition.Kind.INSTRUCTIONS),
}
IS_FAILING = Q(enabled=True, status__in=FAILING_STATES)
FAILING_QUERY = "&".join(f"status__exact={state}" for state in FAILING_STATES)
NONE_MARK = SafeString('<span class="bb-none">–</span>')


def add_discovery_messages(request: HttpRequest, attempts: Sequence[DiscoveryAttempt]) -> None:
    """Add a message for each server with its result or problem."""
    for attempt in attempts:
        name = make_visible(attempt.server.name)
        if attempt.problem is not None:
            text = format_html("{}: {}", name, format_problem(attempt.problem))
            messages.error(request, text)
        elif attempt.result is not None:
            add_message = messages.warning if attempt.result.pending_review else messages.success
            add_message(request, f"{name}: {summarize_discovery(attempt.result)}")


def summarize_discovery(result: DiscoveryResult) -> str:
    tools = len(result.tools)
    parts = [
        ngettext("%(n)s tool", "%(n)s tools", tools) % {"n": format_number(tools)},
        _t("responded in %(ms)s ms") % {"ms": format_number(result.latency_ms)},
    ]
    counts = (
        (_t("%(n)s new"), result.new),
        (_t("%(n)s changed"), result.changed),
        (_t("%(n)s removed"), result.removed),
        (_t("%(n)s rejected"), result.refused),
        (_t("%(n)s pending review"), result.pending_review),
    )
    return (
        ", ".join(
            [*parts, *(text % {"n": format_number(count)} for text, count in counts if count)]
        )
        + "."
    )


def _build_add_url(method: str, *args: Any) -> str:
    return reverse(f"admin:mcp_servers_server_{ROUTE_NAMES.get(method, method)}", args=args)


def _build_next_url(server: Server) -> str:
    page = reverse("admin:mcp_servers_server_change", args=[server.pk])
    return f"{page}?connect=1" if server.enabled else page


POOL_DESTINATION = ServerDestination(
    title=_("Add server"),
    required_action=Action.MANAGE_SERVERS,
    url=_build_add_url,
    build_next_url=_build_next_url,
)


def add_pool_server(request: HttpRequest) -> HttpResponseBase:
    return add_by_form(request, resolve_principal(request), POOL_DESTINATION)


def choose_pool_preset(request: HttpRequest) -> HttpResponseBase:
    return choose_preset(request, resolve_principal(request), POOL_DESTINATION)


def add_pool_server_by_preset(request: HttpRequest, slug: str) -> HttpResponseBase:
    return add_by_preset(request, resolve_principal(request), POOL_DESTINATION, slug)


def add_pool_api(request: HttpRequest) -> HttpResponseBase:
    """Add a REST API by its OpenAPI document."""
    return openapi.add_api(request, resolve_principal(request), POOL_DESTINATION)


def add_pool_operations(request: HttpRequest) -> HttpResponseBase:
    """Add a REST API by declaring its first operation."""
    return declared_operations.add_declared_api(
        request, resolve_principal(request), POOL_DESTINATION
    )


def show_operation_preview(request: HttpRequest) -> HttpResponseBase:
    """Show what an operation would send."""
    return declared_operations.render_operation_preview(request, resolve_principal(request))


class PendingReviewFilter(DropdownFilter):
    """Filter servers by whether definitions are pending review."""

    title = _("definitions")
    parameter_name = "waiting"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("yes", _("pending review")), ("no", _("none pending"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Server]) -> QuerySet[Server]:
        """Filter by the chosen state."""
        has_pending = Exists(_query_pending_definitions())
        return {"yes": queryset.filter(has_pending), "no": queryset.exclude(has_pending)}.get(
            self.value(), queryset
        )


class ServerScopeFilter(DropdownFilter):
    """Filter servers by scope: the pool, or private to an agent."""

    title = _("scope")
    parameter_name = "scope"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("pool", _("the organization")), ("private", _("one agent"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Server]) -> QuerySet[Server]:
        in_pool = Q(scope_id=F("organization_id"))
        return {"pool": queryset.filter(in_pool), "private": queryset.exclude(in_pool)}.get(
            self.value(), queryset
        )


class ServerChangeList(ChangeList):
    """The list of servers; by default, failing ones come first, which no column's arrow shows."""

    def get_ordering_field_columns(self) -> dict[int, str]:
        return super().get_ordering_field_columns() if ORDER_VAR in self.params else {}


@register(Server)
class ServerAdmin(TabbedAdmin):
    """The registered servers of the active organization."""

    needs_to_change = Action.MANAGE_SERVERS
    list_display = (
        "server",
        "state",
        "tool_count",
        "pending_review",
        "uptime",
        "last_connected",
        "latency",
        "switch",
    )
    change_columns = {"switch": ""}
    list_filter = (
        ("status", ChoicesCheckboxFilter),
        ("transport_type", ChoicesCheckboxFilter),
        PendingReviewFilter,
        ServerScopeFilter,
    )
    search_fields = ("name", "description")  # and definitions, see `get_search_results`
    search_help_text = _("Name, description, or tool")
    ordering = (Case(When(IS_FAILING, then=0), default=1), "name")
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
    add_label = _("Add server")
    add_url_name = "mcp_servers_server_presets"
    tab_groups = (
        TabGroup(_("Overview"), ("change",)),
        TabGroup(_("Tools"), ("tools", "data_labels")),
        TabGroup(_("Resources"), ("resources", "prompts")),
        TabGroup(_("Try it"), ("try",)),
        TabGroup(_("Activity"), ("calls", "health")),
        TabGroup(_("Configure"), ("configuration", "credentials", "clients")),
    )
    # Extra views: route, last part of the URL name, view. Other apps append theirs.
    extra_views: ClassVar[tuple[tuple[str, str, Callable[..., HttpResponseBase]], ...]] = (
        ("add/preset/", "presets", choose_pool_preset),
        ("add/preset/<slug:slug>/", "preset", add_pool_server_by_preset),
        ("jobs/<uuid:job_id>/", "bulk_job", bulk_actions.show_bulk_job),
        ("add/openapi/", "openapi", add_pool_api),
        ("add/operations/", "operations", add_pool_operations),
        ("add/operations/preview/", "operation_preview", show_operation_preview),
    )

    def get_urls(self) -> list[URLPattern]:
        """Add the URLs of `extra_views`."""
        urls = [
            path(route, self.admin_site.admin_view(view), name=self._build_route_name(name))
            for route, name, view in self.extra_views
        ]
        confirm_view = self.admin_site.admin_view(self.confirm_view)
        urls += [
            path(f"confirm/{name}/", confirm_view, {"name": name}, self._build_route_name(route))
            for name, route in bulk_actions.CONFIRMATION_ROUTES.items()
        ]
        return [*urls, *super().get_urls()]

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        return add_pool_server(request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Server]:
        """Return the servers, with aliases for sorting by the definition counts."""
        tools, pending_definitions = (
            _query_definitions().tools().filter(present=True),
            _query_pending_definitions(),
        )
        return (
            super()
            .get_queryset(request)
            .prefetch_related(*prefetch_last_day())
            .alias(
                tool_total=_build_count_subquery(tools),
                waiting_count=_build_count_subquery(pending_definitions),
            )
        )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Server], search_term: str
    ) -> tuple[QuerySet[Server], bool]:
        """Match every word in the name, the description or the name of a definition."""
        definitions = Definition.objects.for_organization(
            self.get_principal(request).organization_id
        )
        for word in search_term.split()[:MAX_SEARCH_WORDS]:
            # One subquery instead of one per server: this is the largest table.
            matching_servers = definitions.filter(name__icontains=word).order_by().values("server")
            queryset = queryset.filter(
                Q(name__icontains=word)
                | Q(description__icontains=word)
                | Q(pk__in=matching_servers)
            )
        return queryset, False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ServerChangeList

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Count tools and pending definitions of the servers on the page, in one query."""
        changelist = super().get_changelist_instance(request)
        page = changelist.result_list = list(changelist.result_list)
        counts = count_definitions(page)
        for server in page:
            server.tool_total = counts[server.pk].tools
            server.waiting_count = counts[server.pk].pending_total
        return changelist

    def count_pending(self, visit: ObjectRequest) -> dict[str, int]:
        """Count the definitions pending review that each page shows (one query)."""
        pending = count_definitions([visit.object])[visit.object.pk].pending
        return {
            slug: sum(pending[kind] for kind in kinds) for slug, kinds in KINDS_OF_PAGES.items()
        }

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Drop Django's delete action; ours shows what is affected."""
        actions = super().get_actions(request)
        actions.pop("delete_selected", None)
        return actions

    def has_approve_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may approve definitions."""
        return self.can_perform(request, Action.APPROVE_DEFINITIONS)

    # -- Columns ---------------------------------------------------------------------------------

    @display(description=_("server"), ordering="name")
    def server(self, server: Server) -> str:
        """Return the name, with transport and description."""
        summary = server.description or server.endpoint_config.get("url") or _format_command(server)
        return render_to_string("admin/servers/name.html", {"server": server, "about": summary})

    @display(description=_("status"), ordering="status")
    def state(self, server: Server) -> str:
        """Return the status badge; its title shows the last error."""
        return render_status_badge(server)

    @display(description=_("tools"), ordering="tool_total")
    def tool_count(self, server: Any) -> str:
        """Return the number of tools; a dash if the server was never discovered."""
        return format_number(server.tool_total) if server.discovered_at else "–"

    @display(description=_("to review"), ordering="waiting_count")
    def pending_review(self, server: Any) -> str:
        """Return the number of definitions pending review, as a link."""
        if not server.waiting_count:
            return NONE_MARK
        return render_to_string("admin/servers/pending_reviews.html", {"server": server})

    @display(description=_("last 24 hours"))
    def uptime(self, server: Any) -> str:
        """Return the uptime bar of the last day."""
        return render_uptime_bar(build_last_day(server), tiny=True)

    @display(description=_("last connected"), ordering="last_connected_at")
    def last_connected(self, server: Server) -> Any:
        """Return the time since the last connection."""
        return ago(server.last_connected_at)

    @display(description=_("latency"), ordering="latency_ms")
    def latency(self, server: Server) -> str:
        """Return the latency of the last check, of stdio servers with the start of the process."""
        if server.transport_type != Server.Transport.STDIO or server.latency_ms is None:
            return milliseconds(server.latency_ms)
        title = _("The time to start the process and connect to it")
        return format_html('<span title="{}">{}</span>', title, milliseconds(server.latency_ms))

    @display(description=_("enabled"), ordering="enabled")
    def switch(self, server: Server) -> str:
        url = reverse("admin:mcp_servers_server_toggle", args=[server.pk])
        return render_to_string("admin/parts/list_switch.html", {"row": server, "url": url})

    # -- Bulk actions ----------------------------------------------------------------------------

    @action(description=_("Test connection"), permissions=["change"])
    def test_chosen(
        self, request: HttpRequest, queryset: QuerySet[Server]
    ) -> HttpResponseBase | None:
        """Test the chosen servers and show the results."""
        return self._discover_selected(request, queryset, HealthCheck.Kind.TEST, BulkJob.Kind.TEST)

    @action(description=_("Refresh definitions"), permissions=["change"])
    def refresh_chosen(
        self, request: HttpRequest, queryset: QuerySet[Server]
    ) -> HttpResponseBase | None:
        """Discover each chosen server again."""
        return self._discover_selected(
            request, queryset, HealthCheck.Kind.DISCOVERY, BulkJob.Kind.REFRESH
        )

    @action(description=_("Review definitions…"), permissions=["approve"])
    def approve_chosen(
        self, request: HttpRequest, queryset: QuerySet[Server]
    ) -> HttpResponseBase | None:
        """Confirm the pending definitions of the chosen servers, then approve them."""
        if "confirmed" not in request.POST:
            return bulk_actions.redirect_to_confirmation(request, "approve_chosen")
        return approve_pending_definitions.approve_selected(request, list(queryset))

    @action(description=_("Enable"), permissions=["change"])
    def enable_chosen(
        self, request: HttpRequest, queryset: QuerySet[Server]
    ) -> HttpResponseBase | None:
        servers = list(queryset)
        if len(servers) > bulk_actions.IMMEDIATE_LIMIT:
            return bulk_actions.start_job_and_redirect(request, BulkJob.Kind.ENABLE, servers)
        enable = partial(services.set_server_enabled, self.get_principal(request), enabled=True)
        if count := change_each(request, servers, enable):
            text = ngettext("%(n)s server enabled.", "%(n)s servers enabled.", count)
            messages.success(request, text % {"n": format_number(count)})
        return None

    @action(description=_("Disable…"), permissions=["change"])
    def disable_chosen(
        self, request: HttpRequest, queryset: QuerySet[Server]
    ) -> HttpResponseBase | None:
        """Confirm with the affected rows, then disable the chosen servers."""
        if "confirmed" not in request.POST:
            return bulk_actions.redirect_to_confirmation(request, "disable_chosen")
        return bulk_actions.disable_servers(request, list(queryset))

    @action(description=_("Delete…"), permissions=["delete"])
    def remove_chosen(
        self, request: HttpRequest, queryset: QuerySet[Server]
    ) -> HttpResponseBase | None:
        """Confirm with the affected rows, then delete the chosen servers."""
        if "confirmed" not in request.POST:
            return bulk_actions.redirect_to_confirmation(request, "remove_chosen")
        servers = list(queryset)
        if len(servers) > bulk_actions.IMMEDIATE_LIMIT:
            return bulk_actions.start_job_and_redirect(request, BulkJob.Kind.REMOVE, servers)
        bulk_actions.delete_servers(request, servers)
        return HttpResponseRedirect(reverse("admin:mcp_servers_server_changelist"))

    def confirm_view(self, request: HttpRequest, name: str) -> HttpResponseBase:
        """Show what an action of the list affects, before it is posted to the list."""
        if name not in self.get_actions(request):
            needed_action = self.action_needs.get(name, self.needs_to_change)
            raise self.build_permission_error(request, needed_action)
        version = read_list_version(request)
        servers = self._load_servers_to_confirm(request)
        if not servers:
            text = _t("The selected servers don't exist. Select servers in the list.")
            messages.warning(request, text)
            return HttpResponseRedirect(reverse("admin:mcp_servers_server_changelist"))
        confirmed_by = approve_pending_definitions if name == "approve_chosen" else bulk_actions
        response = confirmed_by.render_confirmation(self, request, name, servers)
        return insert_list_version(response, version)

    def _load_servers_to_confirm(self, request: HttpRequest) -> list[Server]:
        if bulk_actions.ALL_PARAMETER not in request.GET:
            ids = bulk_actions.parse_selected_ids(request)
            rows = self.get_queryset(request).filter(pk__in=ids)
            return list(rows.select_related("preset").order_by("name"))
        query = request.GET.copy()
        del query[bulk_actions.ALL_PARAMETER]
        list_url = reverse("admin:mcp_servers_server_changelist")
        list_request = build_page_request(request, f"{list_url}?{query.urlencode()}")
        changelist = super().get_changelist_instance(list_request)
        return list(changelist.get_queryset(list_request).select_related("preset"))

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Confirm with the affected rows, then delete the server."""
        principal = self.get_principal(request)
        server = self.get_object_or_404(request, object_id)
        principal.require(Action.MANAGE_SERVERS)
        if request.method != "POST":
            return confirm_removal(self, request, [collect_impact(server)])
        name = str(server)
        add_deleted_message(request, name, services.delete_server(principal, server))
        return HttpResponseRedirect(reverse("admin:mcp_servers_server_changelist"))

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the list with the running bulk jobs and how many servers need attention."""
        context = {
            "jobs": bulk_actions.list_running_jobs(request),
            "segments": self._list_segments(request),
        }
        return super().changelist_view(request, {**(extra_context or {}), **context})

    def _list_segments(self, request: HttpRequest) -> list[tuple[str, str, bool]]:
        """Return the title with a count, the query of each segment, and if it is shown.

        As on the dashboard, what is to review are definitions, not servers.
        """
        organization_id = self.get_principal(request).organization_id
        counts = Server.objects.for_organization(organization_id).aggregate(
            total=Count("pk"), failing=Count("pk", filter=IS_FAILING)
        )
        definitions: DefinitionQuerySet = Definition.objects.for_organization(organization_id)
        pending = definitions.awaiting_review().order_by()[: MAX_COUNTED + 1].count()
        review = ngettext("%(n)s definition to review", "%(n)s definitions to review", pending)
        segments = (
            (f"{_t('All')} {format_number(counts['total'])}", ""),
            (f"{_t('Failing')} {format_number(counts['failing'])}", FAILING_QUERY),
            (review % {"n": counted(pending)}, "waiting=yes"),
        )
        shown = QueryDict(request.META.get("QUERY_STRING", ""))
        names = ("status__exact", "waiting")
        shown_filters = {name: shown.getlist(name) for name in names if name in shown}
        return [
            (title, query, shown_filters == dict(QueryDict(query).lists()))
            for title, query in segments
        ]

    def _discover_selected(
        self, request: HttpRequest, queryset: QuerySet[Server], kind: str, job_kind: str
    ) -> HttpResponseBase | None:
        servers = list(queryset)
        if len(servers) > bulk_actions.IMMEDIATE_LIMIT:
            return bulk_actions.start_job_and_redirect(request, job_kind, servers)
        add_discovery_messages(
            request,
            discover_servers(servers, actor=self.get_principal(request).actor, kind=kind),
        )
        return None


def render_status_badge(server: Server) -> SafeString:
    context = {"server": server}
    return render_to_string("admin/servers/state.html", context)


def _query_definitions() -> DefinitionQuerySet:
    definitions: DefinitionQuerySet = Definition.objects.filter(server=OuterRef("pk")).order_by()
    return definitions


def _query_pending_definitions() -> DefinitionQuerySet:
    """Return the pending ones; filters by organization to use the index of pending definitions."""
    return _query_definitions().awaiting_review().filter(organization=OuterRef("organization"))


def _build_count_subquery(rows: QuerySet[Definition]) -> Coalesce:
    counts = rows.values("server").annotate(n=Count("pk")).values("n")
    return Coalesce(Subquery(counts, output_field=IntegerField()), 0)


def _format_command(server: Server) -> str:
    config = server.endpoint_config
    return " ".join([config.get("command", ""), *config.get("args", ())])


@ServerAdmin.add_object_action("test", required_actions=Action.MANAGE_SERVERS)
def probe_server(visit: ObjectRequest) -> None:
    """Test the server now."""
    attempts = discover_servers(
        [visit.object], actor=visit.principal.actor, kind=HealthCheck.Kind.TEST
    )
    add_discovery_messages(visit.request, attempts)


@ServerAdmin.add_object_action("refresh", required_actions=Action.MANAGE_SERVERS)
def refresh_server(visit: ObjectRequest) -> None:
    """Discover the server again."""
    attempts = discover_servers(
        [visit.object], actor=visit.principal.actor, kind=HealthCheck.Kind.DISCOVERY
    )
    add_discovery_messages(visit.request, attempts)


def redirect_to_server(visit: ObjectRequest) -> HttpResponseBase:
    """Redirect to the overview of a server, which connects it if it is enabled."""
    return redirect_to_page(visit, "change", "?connect=1" if visit.object.enabled else "")
