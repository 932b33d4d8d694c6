"""Navigation of the admin: the sidebar with its counts, the Settings area, and a page's trail."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.conf import settings
from django.db import connection
from django.db.models import Count, DateTimeField, UUIDField, Value
from django.db.models.functions import Concat
from django.http import HttpRequest
from django.urls import get_script_prefix, reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from agents.access_requests import ANSWER_PERMISSIONS
from agents.models import AccessRequest, Approval, ElicitationRequest, Session
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import counted
from bonobot.core.db.prepared_queries import QueryParameter, fill_parameters
from bonobot.core.process_cache import compute_once
from mcp_servers.models import Definition

DASHBOARD = "index"
SETTINGS = "settings"
APPROVALS = "agents_approval_changelist"
ELICITATIONS = "agents_elicitationrequest_changelist"
ACCESS_REQUESTS = "agents_accessrequest_changelist"
SERVERS = "mcp_servers_server_changelist"
OAUTH_CLIENTS = "oauth_clients"
_counts_by_request: "WeakKeyDictionary[HttpRequest, PendingCounts]" = WeakKeyDictionary()


@dataclass(frozen=True)
class PendingCounts:
    """What is pending for a person: definitions, calls and requests, and unfinished sessions.

    `inbox` is the number of calls and requests that the person can answer. `questions` are the
    elicitation requests that they can answer, or all of them if they can only view them.
    """

    definitions: int = 0
    calls: int = 0
    questions: int = 0
    access_requests: int = 0
    sessions: int = 0
    inbox: int = 0


@dataclass(frozen=True)
class OrganizationPendingCounts:
    """What is pending in an organization: numbers by name, of elicitation requests by addressee."""

    numbers: Mapping[str, int] = field(default_factory=dict)
    questions: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return a text that changes with the counts."""
        return json.dumps(asdict(self), sort_keys=True)

    def select_for(self, principal: Principal) -> PendingCounts:
        """Return the counts of what a person can answer or view; zeros without permission."""
        numbers = self.numbers if principal.may(Action.VIEW) else {}
        counts = PendingCounts(**{**numbers, "questions": self._count_questions(principal)})
        answerable = (
            getattr(counts, name)
            for name in ("calls", "questions", "access_requests")
            if any(map(principal.may, _ANSWERING_ACTIONS[name]))
        )
        return replace(counts, inbox=sum(answerable))

    def _count_questions(self, principal: Principal) -> int:
        """As `agents.elicitations.services.can_answer` and the permissions of the list decide."""
        if not principal.may(Action.RUN_AGENTS):
            return sum(self.questions.values()) if principal.may(Action.VIEW) else 0
        own = f"{principal.kind}:{principal.id}"
        return sum(
            count
            for addressee, count in self.questions.items()
            if addressee == own
            or (not addressee.startswith("user:") and principal.may(Action.APPROVE_CALLS))
        )


def count_pending(request: HttpRequest) -> PendingCounts:
    """Return the counts for the user (one query per request); zeros without permission."""
    if (counts := _counts_by_request.get(request)) is None:
        principal = resolve_principal(request)
        counts = load_pending_counts(principal.organization_id).select_for(principal)
        _counts_by_request[request] = counts
    return counts


ORGANIZATION = QueryParameter("organization", output_field=UUIDField())
NOW = QueryParameter("now", output_field=DateTimeField())
_QUESTIONS = "questions:"


def load_pending_counts(organization_id: UUID) -> OrganizationPendingCounts:
    """Return the counts of an organization (one query)."""
    sql, parameters = _compile_counts()
    values: dict[Any, Any] = {ORGANIZATION.value: organization_id, NOW.value: timezone.now()}
    with connection.cursor() as cursor:
        cursor.execute(sql, fill_parameters(parameters, values))
        counts = dict(cursor.fetchall())
    questions = {
        name.removeprefix(_QUESTIONS): counts.pop(name)
        for name in sorted(counts)
        if name.startswith(_QUESTIONS)
    }
    return OrganizationPendingCounts(counts, questions)


@compute_once  # to compile it takes longer than to execute it, and every page shows the counts
def _compile_counts() -> tuple[str, tuple[Any, ...]]:
    """Return the query for the counts of any organization, and its parameters."""
    first_query, *other_queries = [
        rows.filter(organization_id=ORGANIZATION).build_capped_count(name)
        for name, rows in {
            "definitions": Definition.objects.all().awaiting_review(),
            "calls": Approval.objects.all().pending(NOW),
            "access_requests": AccessRequest.objects.all().pending(NOW),
            "sessions": Session.objects.all().unfinished(),
        }.items()
    ]
    elicitation_requests = (
        ElicitationRequest.objects.all().pending(NOW).filter(organization_id=ORGANIZATION)
    )
    addressee = Concat(Value(_QUESTIONS), "requested_by_kind", Value(":"), "requested_by_id")
    questions_query = (
        elicitation_requests.order_by()
        .values(counted=addressee)
        .annotate(n=Count("pk"))
        .values_list("counted", "n")
    )
    query: Any = first_query.union(*other_queries, questions_query, all=True).query
    sql, parameters = query.sql_with_params()
    return sql, tuple(parameters)


@dataclass(frozen=True)
class PageView:
    """One of the tabs of a page that shows different rows by its query string."""

    title: Any
    query: str = ""
    live_count: str = ""


@dataclass(frozen=True)
class NavigationEntry:
    """A page that the navigation leads to, with the action that opening it needs.

    Pages below its URL belong to it, and so do those of `children`, which aren't in the sidebar.
    """

    title: Any
    icon: str
    url_name: str
    required_action: Action = Action.VIEW
    description: Any = ""
    is_platform_only: bool = False
    children: tuple["NavigationEntry", ...] = ()
    live_count: str = ""  # attribute of `PendingCounts` that the entry shows
    views: tuple["PageView", ...] = ()


Groups = tuple[tuple[Any, tuple[NavigationEntry, ...]], ...]

FIRST_STEPS = NavigationEntry(_("First steps"), "flag", "first_run", Action.MANAGE_SERVERS)
SIDEBAR: Groups = (
    (
        "",
        (
            NavigationEntry(_("Dashboard"), "dashboard", DASHBOARD, children=(FIRST_STEPS,)),
            NavigationEntry(
                _("Approvals"),
                "inbox",
                APPROVALS,
                Action.RUN_AGENTS,
                live_count="inbox",
                views=(
                    PageView(_("Pending"), live_count="calls"),
                    PageView(_("Answered"), "?tab=answered"),
                ),
                children=(
                    NavigationEntry(
                        _("Elicitation requests"),
                        "contact_support",
                        ELICITATIONS,
                        Action.RUN_AGENTS,
                        live_count="questions",
                    ),
                    NavigationEntry(
                        _("Access requests"),
                        "key",
                        ACCESS_REQUESTS,
                        Action.RUN_AGENTS,
                        live_count="access_requests",
                    ),
                ),
            ),
        ),
    ),
    (
        _("Build"),
        (
            NavigationEntry(_("Agents"), "smart_toy", "agents_agent_changelist", Action.RUN_AGENTS),
            NavigationEntry(_("Servers"), "dns", SERVERS, live_count="definitions"),
            NavigationEntry(_("Skills"), "school", "agents_skill_changelist", Action.RUN_AGENTS),
            NavigationEntry(
                _("Workflows"), "account_tree", "agents_workflow_changelist", Action.RUN_AGENTS
            ),
        ),
    ),
    (
        _("Govern"),
        (
            NavigationEntry(_("Policies"), "policy", "organization_policy"),
            NavigationEntry(_("Budgets"), "account_balance_wallet", "agents_budget_changelist"),
            NavigationEntry(_("Kill switch"), "power_settings_new", "organization_kill_switch"),
        ),
    ),
    (
        _("Observe"),
        (
            NavigationEntry(_("Sessions"), "forum", "agents_session_changelist", Action.RUN_AGENTS),
            NavigationEntry(
                _("Audit log"), "receipt_long", "ledger_auditrow_changelist", Action.VIEW_AUDIT
            ),
            NavigationEntry(_("Usage"), "bar_chart", "usage", Action.VIEW_AUDIT),
        ),
    ),
)
SETTINGS_AREA: Groups = (
    (
        _("General"),
        (
            NavigationEntry(
                _("Organization"),
                icon="domain",
                url_name="tenancy_organization_changelist",
                required_action=Action.MANAGE_ORGANIZATION,
                description=_("Name, approval and sign-in rules, and retention"),
            ),
            NavigationEntry(
                _("Members"),
                "group",
                "tenancy_membership_changelist",
                description=_("People, roles, and invitations"),
                children=(
                    NavigationEntry(
                        _("Invitations"),
                        "mail",
                        "tenancy_invitation_changelist",
                        Action.MANAGE_MEMBERS,
                    ),
                ),
            ),
            NavigationEntry(
                _("Sign-in"),
                icon="login",
                url_name="tenancy_provider_changelist",
                required_action=Action.MANAGE_ORGANIZATION,
                description=_("Identity providers for single sign-on"),
            ),
            NavigationEntry(
                _("Tokens"),
                icon="key",
                url_name="tenancy_token_changelist",
                required_action=Action.MANAGE_TOKENS,
                description=_("Access to MCP and REST"),
            ),
            NavigationEntry(
                _("OAuth clients"),
                icon="apps",
                url_name=OAUTH_CLIENTS,
                required_action=Action.MANAGE_TOKENS,
                description=_("Clients that members authorized"),
            ),
            NavigationEntry(
                _("Notifications"),
                icon="notifications",
                url_name="notices_notification_changelist",
                required_action=Action.VIEW_AUDIT,
                description=_("Channels, and sent notifications"),
                children=(
                    NavigationEntry(
                        _("Channels"),
                        "campaign",
                        "notices_notificationchannel_changelist",
                        Action.VIEW_AUDIT,
                    ),
                ),
            ),
        ),
    ),
    (
        _("Agents and servers"),
        (
            NavigationEntry(
                _("Models"),
                "psychology",
                "agents_modelendpoint_changelist",
                description=_("Model providers and their keys"),
            ),
            NavigationEntry(
                _("Presets"),
                "extension",
                "mcp_servers_preset_changelist",
                description=_("Templates for servers"),
            ),
            NavigationEntry(
                _("Recently deleted"),
                icon="restore_from_trash",
                url_name="tenancy_deletion_changelist",
                required_action=Action.MANAGE_AGENTS,
                description=_("Objects that can be restored"),
            ),
            NavigationEntry(
                _("Launchers"),
                "terminal",
                "mcp_servers_launcher_changelist",
                description=_("Commands that local servers may use"),
                is_platform_only=True,
            ),
        ),
    ),
    (
        _("Platform"),
        tuple(
            NavigationEntry(title, icon, url_name, description=description, is_platform_only=True)
            for title, icon, url_name, description in (
                (_("Users"), "badge", "tenancy_user_changelist", _("Accounts of all members")),
                (
                    _("External issuers"),
                    "passkey",
                    "tenancy_issuer_changelist",
                    _("Token issuers that the gateway trusts"),
                ),
                (
                    _("Schedules"),
                    "schedule",
                    "django_celery_beat_periodictask_changelist",
                    _("Recurring jobs"),
                ),
                (
                    _("Settings check"),
                    "troubleshoot",
                    "settings_check",
                    _("Problems of this installation"),
                ),
            )
        ),
    ),
)


@dataclass(frozen=True)
class NavigationItem:
    """An entry as the user sees it; it is active if the page belongs to it.

    `badge` is the number of pending items that `live_count` names, blank for none. The person can
    answer these items, or only view them, which tabs show more quietly.
    """

    title: Any
    icon: str
    link: str
    description: Any = ""
    live_count: str = ""
    badge: str = ""
    badge_title: Any = ""  # the unit of the number
    can_answer: bool = False
    active: bool = False
    children: tuple["NavigationItem", ...] = ()
    views: tuple["NavigationItem", ...] = ()


@dataclass(frozen=True)
class NavigationGroup:
    """Entries with a common title; the Settings area is apart from the sidebar."""

    title: Any
    items: tuple[NavigationItem, ...]


@dataclass(frozen=True)
class Navigation:
    """The navigation of one user on one page.

    `trail` are the active items from the sidebar's entry to the page's own.
    """

    sidebar: tuple[NavigationGroup, ...] = ()
    settings_area: tuple[NavigationGroup, ...] = ()
    settings: NavigationItem | None = None
    trail: tuple[NavigationItem, ...] = ()

    @property
    def is_in_settings(self) -> bool:
        """Return whether the page belongs to the Settings area."""
        return self.settings is not None and self.settings.active

    @property
    def title_count(self) -> str:
        """Return the number that the title of each page shows: that of the entry *Approvals*."""
        link = _reverse(APPROVALS)
        items = (item for group in self.sidebar for item in group.items)
        return next((item.live_count for item in items if item.link == link), "")

    @property
    def section_tabs(self) -> list[NavigationItem]:
        """Return the pages of the same section: the entry (or its views) and its children.

        Empty if there is only one.
        """
        section = next((item for item in reversed(self.trail) if item.children), None)
        if section is None:
            return []
        own_link = self.trail[-1].link
        # The number of the entry is that of all its pages.
        own_items = section.views or (replace(section, children=(), live_count="", badge=""),)
        return [
            replace(item, active=item.link == own_link) for item in (*own_items, *section.children)
        ]


def build_navigation(principal: Principal, path: str, pending: PendingCounts) -> Navigation:
    """Return what the principal may open; `path` is the URL of the page."""
    sidebar = tuple(_build_groups(principal, SIDEBAR, pending))
    area = tuple(_build_groups(principal, SETTINGS_AREA, pending))
    settings_item = NavigationItem(_("Settings"), "settings", _reverse(SETTINGS))
    trails = [
        *(trail for group in sidebar for trail in _list_trails(group.items)),
        *((settings_item, *trail) for group in area for trail in _list_trails(group.items)),
        (settings_item,),
    ]
    matching = [trail for trail in trails if _contains(trail[-1].link, path)]
    trail = max(matching, key=lambda items: len(items[-1].link), default=())
    links = {item.link for item in trail}
    return Navigation(
        tuple(_mark_active(sidebar, links)),
        tuple(_mark_active(area, links)),
        replace(settings_item, active=settings_item.link in links) if area else None,
        trail,
    )


def can_open(principal: Principal, entry: NavigationEntry) -> bool:
    """Return whether the navigation shows an entry to the principal."""
    if entry.url_name == OAUTH_CLIENTS and not settings.BONOBOT_OAUTH:
        return False
    if entry.is_platform_only:
        return principal.platform_admin
    # Auditors and reviewers can't run agents, but can view them.
    return principal.may(entry.required_action) or (
        entry.required_action == Action.RUN_AGENTS and principal.may(Action.VIEW)
    )


def _build_groups(
    principal: Principal, groups: Groups, pending: PendingCounts
) -> Iterator[NavigationGroup]:
    for title, entries in groups:
        if items := tuple(_build_items(principal, entries, pending)):
            yield NavigationGroup(title, items)


def _build_items(
    principal: Principal, entries: Iterable[NavigationEntry], pending: PendingCounts
) -> Iterator[NavigationItem]:
    for entry in entries:
        if can_open(principal, entry):
            link = _reverse(entry.url_name)
            yield NavigationItem(
                entry.title,
                icon=entry.icon,
                link=link,
                description=entry.description,
                **_build_badge(pending, _choose_live_count(principal, entry.live_count)),
                children=tuple(
                    _build_tab(principal, child, item, pending)
                    for child in entry.children
                    for item in _build_items(principal, [child], pending)
                ),
                views=tuple(
                    _build_tab(
                        principal, view, NavigationItem(view.title, "", link + view.query), pending
                    )
                    for view in entry.views
                ),
            )


def _build_tab(
    principal: Principal,
    page: NavigationEntry | PageView,
    item: NavigationItem,
    pending: PendingCounts,
) -> NavigationItem:
    """Return an item with its number, also for those who can only view what is pending."""
    live_count = _choose_live_count(principal, page.live_count)
    shown_count = live_count or (page.live_count if principal.may(Action.VIEW) else "")
    badge = _build_badge(pending, shown_count) | {"can_answer": bool(live_count)}
    return replace(item, **badge)


# What a person has to be able to do for a number of pending items to be theirs.
_ANSWERING_ACTIONS = {
    "definitions": (Action.APPROVE_DEFINITIONS,),
    "calls": (Action.APPROVE_CALLS,),
    "questions": (Action.RUN_AGENTS,),
    "access_requests": ANSWER_PERMISSIONS,
    "inbox": (Action.APPROVE_CALLS, Action.RUN_AGENTS, *ANSWER_PERMISSIONS),
}

_BADGE_TITLES = {
    "definitions": _("Definitions to review"),
    "calls": _("Pending approvals"),
    "questions": _("Pending elicitation requests"),
    "access_requests": _("Pending access requests"),
    "inbox": _("Pending approvals and requests"),
}


def _choose_live_count(principal: Principal, live_count: str) -> str:
    """Return the number that the principal sees: of items that they can answer, blank for none."""
    is_answering = any(map(principal.may, _ANSWERING_ACTIONS.get(live_count, ())))
    return live_count if is_answering else ""


def _build_badge(pending: PendingCounts, live_count: str) -> dict[str, Any]:
    count = getattr(pending, live_count) if live_count else 0
    return {
        "live_count": live_count,
        "badge": counted(count) if count else "",
        "badge_title": _BADGE_TITLES.get(live_count, ""),
        "can_answer": bool(live_count),
    }


def _reverse(url_name: str) -> str:
    return _reverse_below(url_name, get_script_prefix())


@compute_once  # each page asks for these of all entries, several times
def _reverse_below(url_name: str, script_prefix: str) -> str:
    return reverse(f"admin:{url_name}")


def _list_trails(items: Iterable[NavigationItem]) -> Iterator[tuple[NavigationItem, ...]]:
    for item in items:
        yield (item,)
        yield from ((item, *trail) for trail in _list_trails(item.children))


def _contains(link: str, path: str) -> bool:
    """Return whether a page belongs to an entry; all pages are below the dashboard's URL."""
    return path == link if link == _reverse(DASHBOARD) else path.startswith(link)


def _mark_active(groups: Iterable[NavigationGroup], links: set[str]) -> Iterator[NavigationGroup]:
    for group in groups:
        yield NavigationGroup(
            group.title, tuple(replace(item, active=item.link in links) for item in group.items)
        )
