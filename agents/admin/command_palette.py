"""Search of screens, actions, objects and the documentation for the command palette.

Finds only what the person may open, in at most 8 queries.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from agents.admin.navigation import APPROVALS, Navigation, NavigationItem
from agents.models import Agent, Session, Skill, Workflow
from bonobot.accounts.models import Membership
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.documentation.pages import search_pages
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.models import Definition, Server

MAX_RESULTS_PER_TYPE = 6
MAX_QUERY_LENGTH = 100
MIN_DOCUMENTATION_QUERY = 3  # characters; fewer are found in most sections
MAX_DOCUMENTATION_RESULTS = 3
AUDIT_LOG = "ledger_auditrow_changelist"
# Actions with a page of their own: (title, icon, URL name with its query, required action).
PALETTE_ACTIONS: tuple[tuple[Any, str, str, Action], ...] = (
    (_("Add server"), "add", "mcp_servers_server_presets", Action.MANAGE_SERVERS),
    (
        _("Paste JSON"),
        "content_paste",
        "mcp_servers_server_paste",
        Action.MANAGE_SERVERS,
    ),
    (_("Create agent"), "smart_toy", "agents_agent_add", Action.MANAGE_AGENTS),
    (_("Add model"), "psychology", "agents_modelendpoint_add", Action.MANAGE_AGENTS),
    (_("Create skill"), "school", "agents_skill_add", Action.MANAGE_WORKFLOWS),
    (_("Create token"), "key", "tenancy_token_add", Action.MANAGE_TOKENS),
    (_("Invite member"), "person_add", "tenancy_invitation_add", Action.MANAGE_MEMBERS),
    (_("Request access"), "key", "agents_accessrequest_add", Action.RUN_AGENTS),
    (
        _("Audit log: denied calls"),
        "receipt_long",
        f"{AUDIT_LOG}?kind=call&outcome__in=refused",
        Action.VIEW_AUDIT,
    ),
    (
        _("Audit log: failed calls"),
        "receipt_long",
        f"{AUDIT_LOG}?kind=call&outcome__in=error",
        Action.VIEW_AUDIT,
    ),
)
# Buttons of the account menu: (title, icon, fragment with the button's id).
THEME_ACTIONS = (
    (_("Switch theme: light"), "light_mode", "#theme-light"),
    (_("Switch theme: dark"), "dark_mode", "#theme-dark"),
    (_("Switch theme: system"), "contrast", "#theme-auto"),
)


@dataclass(frozen=True)
class PaletteEntry:
    """A result: a screen, an action or an object; a fragment as URL names a button to press."""

    title: str
    kind: str
    icon: str
    url: str
    other_words: str = ""  # that find it, too

    def has_words(self, words: Iterable[str]) -> bool:
        """Return whether each of these lowercase words is the start of one of its words."""
        own_words = re.findall(r"\w+", f"{self.title} {self.other_words}".lower())
        return all(any(own.startswith(word) for own in own_words) for word in words)


def search_palette(principal: Principal, navigation: Navigation, query: str) -> list[PaletteEntry]:
    """Return the entries that match all words: actions, then screens, then objects.

    Without words, these are all actions and screens, and the first agents.
    """
    words = query[:MAX_QUERY_LENGTH].lower().split()
    local_words = re.findall(r"\w+", " ".join(words))
    if words and not local_words:
        return list(_search_objects(principal, words))
    local_entries = [*_list_actions(principal), *_list_screens(navigation)]
    matches = [entry for entry in local_entries if entry.has_words(local_words)]
    search = _search_objects if words else _search_agents
    return [*matches, *search(principal, words)]


def search_documentation(query: str) -> list[PaletteEntry]:
    """Return a link to the documentation's search for a query, after its best sections."""
    text = query[:MAX_QUERY_LENGTH].strip()
    url = reverse("documentation")
    if not text:
        return [PaletteEntry(str(_("Documentation")), str(_("documentation")), "menu_book", url)]
    results = (
        search_pages(text, MAX_DOCUMENTATION_RESULTS)
        if len(text) >= MIN_DOCUMENTATION_QUERY
        else []
    )
    sections = [
        PaletteEntry(
            result.section.heading.title, result.section.page_title, "article", result.section.url
        )
        for result in results
    ]
    title = _("Search documentation: %(text)s") % {"text": make_visible(text, 60)}
    link = f"{url}?{urlencode({'q': text})}"
    return [*sections, PaletteEntry(title, str(_("documentation")), "menu_book", link)]


def _list_screens(navigation: Navigation) -> Iterator[PaletteEntry]:
    approvals_url = reverse(f"admin:{APPROVALS}")
    for group in (*navigation.sidebar, *navigation.settings_area):
        for item in _flatten_items(group.items):
            other_words = str(_("approve, deny")) if item.link == approvals_url else ""
            yield PaletteEntry(str(item.title), str(group.title), item.icon, item.link, other_words)


def _flatten_items(items: Iterable[NavigationItem]) -> Iterator[NavigationItem]:
    for item in items:
        yield item
        yield from _flatten_items(item.children)


def _list_actions(principal: Principal) -> Iterator[PaletteEntry]:
    for title, icon, address, action in PALETTE_ACTIONS:
        if principal.may(action):
            url_name, separator, parameters = address.partition("?")
            url = reverse(f"admin:{url_name}") + separator + parameters
            yield PaletteEntry(str(title), str(_("action")), icon, url)
    for title, icon, fragment in THEME_ACTIONS:
        yield PaletteEntry(str(title), str(_("action")), icon, fragment)


def _search_objects(principal: Principal, words: list[str]) -> Iterator[PaletteEntry]:
    organization_id = principal.organization_id
    if principal.may(Action.VIEW):
        servers = Server.objects.for_organization(organization_id)
        yield from _search_rows(servers, words, "dns", "mcp_servers_server_change", _("server"))
        yield from _search_tools(servers, words)
        yield from _search_members(organization_id, words)
    yield from _search_agents(principal, words)
    skills = Skill.objects.visible_to(principal)
    yield from _search_rows(skills, words, "school", "agents_skill_change", _("skill"))
    workflows = Workflow.objects.visible_to(principal)
    yield from _search_rows(
        workflows, words, "account_tree", "agents_workflow_change", _("workflow")
    )
    sessions = Session.objects.visible_to(principal).order_by("-created_at")
    yield from _search_rows(
        sessions, words, "forum", "agents_session_change", _("session"), "title"
    )


def _search_agents(principal: Principal, words: list[str]) -> Iterator[PaletteEntry]:
    """Yield the agents; each opens its chat."""
    agents = Agent.objects.visible_to(principal).order_by("name")
    yield from _search_rows(agents, words, "smart_toy", "agents_agent_change", _("agent"))


def _search_tools(servers: QuerySet[Server], words: list[str]) -> Iterator[PaletteEntry]:
    """Yield the tools of servers; each opens the tools of its server that have its name."""
    condition = Q()
    for word in words:
        condition &= Q(name__icontains=word) | Q(server__name__icontains=word)
    # Only those whose own name has a word: a server's name alone would find all its tools.
    own_name = Q()
    for word in words:
        own_name |= Q(name__icontains=word)
    tools = Definition.objects.tools().filter(condition, own_name, server__in=servers, present=True)
    rows = tools.order_by("name").values_list("name", "server_id", "server__name")
    for name, server_id, server_name in rows[:MAX_RESULTS_PER_TYPE]:
        url = reverse("admin:mcp_servers_server_tools", args=[server_id])
        kind = _("tool of %(server)s") % {"server": make_visible(server_name, 40)}
        yield PaletteEntry(
            make_visible(name, 80), str(kind), "build", f"{url}?{urlencode({'q': name})}"
        )


def _search_members(organization_id: UUID, words: list[str]) -> Iterator[PaletteEntry]:
    """Yield the members whose username, name, or email address has the words."""
    condition = Q()
    for word in words:
        condition &= (
            Q(user__username__icontains=word)
            | Q(user__first_name__icontains=word)
            | Q(user__last_name__icontains=word)
            | Q(user__email__icontains=word)
        )
    members = Membership.objects.filter(condition, organization_id=organization_id)
    rows = members.select_related("user").order_by("user__username")
    for member in rows[:MAX_RESULTS_PER_TYPE]:
        url = reverse("admin:tenancy_membership_change", args=[member.pk])
        name = make_visible(member.user.get_username(), 80)
        yield PaletteEntry(name, str(_("member")), "person", url)


def _search_rows(
    rows: QuerySet[Any], words: list[str], icon: str, url_name: str, kind: Any, field: str = "name"
) -> Iterator[PaletteEntry]:
    condition = Q()
    for word in words:
        condition &= Q(**{f"{field}__icontains": word})
    for row in rows.filter(condition)[:MAX_RESULTS_PER_TYPE]:
        url = reverse(f"admin:{url_name}", args=[row.pk])
        yield PaletteEntry(make_visible(str(row), 80), str(kind), icon, url)
