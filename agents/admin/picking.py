"""Give an agent servers: choose them, then what it gets of each: at least one capability (C2)."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.db.models import Count, Q
from django.http import QueryDict
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.admin.ticking import KINDS, Ticks, columns, said, ticks
from agents.bindings import bind
from agents.choices import EVERYTHING, choose, gets, ticked
from agents.models import Agent, Binding
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.sayings import say
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, fragment, onward
from mcp_servers.admin.contact import contact
from mcp_servers.models import Check, Definition, Server

SERVERS_SHOWN = 50  # at once; others are searched for


@dataclass(frozen=True)
class Part:
    """One kind of capabilities: how it is called, and what it means on a binding.

    `slug` names the form's fields (`tool-<server>`) and `column` the binding's list.
    """

    slug: str
    title: Any
    nothing: Any
    column: str
    kinds: tuple[str, ...]


PARTS = (
    Part("tool", _("Tools"), _("It offers no tools."), "allowed_tools", (Definition.Kind.TOOL,)),
)


@dataclass(frozen=True)
class Offered:
    """What a server offers of one kind, and what is ticked of it."""

    part: Part
    rows: list[Definition]
    ticked: frozenset[str]

    @property
    def count(self) -> int:
        """Return how many of those that are offered are ticked."""
        return sum(row.name in self.ticked for row in self.rows)


@dataclass
class Picked:
    """One server with what the agent has of it now, or what a form said of it."""

    server: Server
    binding: Binding | None
    rows: list[Definition] = field(default_factory=list)
    posted: QueryDict | None = None
    problem: Problem | None = None

    @property
    def how(self) -> str:
        """Return `all`, `chosen`, or "" while nobody has said."""
        if self.posted is not None:
            return str(self.posted.get(f"how-{self.server.pk}", ""))
        if self.binding is None:
            return ""
        narrowed = any(getattr(self.binding, part.column) for part in PARTS)
        return "chosen" if narrowed else "all"

    @property
    def denied(self) -> list[str]:
        """Return the globs of what the agent never gets."""
        if self.posted is not None:
            text = self.posted.get(f"denied-{self.server.pk}", "")
            return [line.strip() for line in str(text).splitlines() if line.strip()]
        return list(self.binding.denied_tools) if self.binding else []

    @property
    def denied_lines(self) -> str:
        """Return them one on each line."""
        return "\n".join(self.denied)

    @property
    def parts(self) -> list[Offered]:
        """Return what it offers, part by part."""
        return [self._offered(part) for part in PARTS]

    @property
    def ticks(self) -> list[Ticks]:
        """Return its resources and prompts, sort by sort, with what is ticked of them."""
        return ticks(self.rows, self.binding, self.posted, str(self.server.pk))

    @property
    def offers_more(self) -> bool:
        """Tell whether it offers resources or prompts."""
        return any(one.rows for one in self.ticks)

    @property
    def asked(self) -> bool:
        """Tell whether anybody knows what it offers."""
        return self.server.discovered_at is not None or bool(self.rows)

    @property
    def to_ask(self) -> bool:
        """Tell whether it is to be asked before anything can be chosen of it."""
        return not self.asked and self.server.enabled and self.posted is None

    def save(self, visit: Visit) -> int | None:
        """Write what the form said; return how many capabilities, or None for everything."""
        lists = {offered.part.column: self._chosen(offered) for offered in self.parts}
        if said(self.posted, str(self.server.pk)):
            lists |= columns(self.ticks)
        bind(
            visit.principal,
            visit.object,
            self.server,
            enabled=self.binding.enabled if self.binding else True,
            denied_tools=self.denied,
            **lists,
        )
        if self.how == "all":
            return None
        return sum(offered.count for offered in self.parts) + self._also()

    def _also(self) -> int:
        """Return how many resources, prompts and patterns are ticked."""
        return sum(len(one.patterns) for one in self.ticks)

    def _offered(self, part: Part) -> Offered:
        rows = [row for row in self.rows if row.kind in part.kinds]
        if self.posted is not None:
            chosen = frozenset(self.posted.getlist(f"{part.slug}-{self.server.pk}"))
        else:
            kept = getattr(self.binding, part.column) if self.binding else []
            chosen = frozenset(row.name for row in rows if kept and gets(row.name, kept))
        return Offered(part, rows, chosen)

    def _chosen(self, offered: Offered) -> list[str]:
        """Return the globs of one part; raises `Invalid` (`nothing_chosen`, `unknown_tool`)."""
        field_name = f"{offered.part.slug}-{self.server.pk}"
        if self.how == "all" or (self._also() and not offered.rows):
            return choose([EVERYTHING], (), field=field_name)
        names = {row.name for row in offered.rows}
        kept = getattr(self.binding, offered.part.column) if self.binding else []
        globs = ticked(offered.ticked, names, kept)
        return choose(globs, names, field=field_name)


@AgentAdmin.add_page("pick", needs=Action.MANAGE_AGENTS)
def pick(visit: Visit) -> HttpResponseBase:
    """Choose servers; then what the agent gets of each; then give them."""
    if visit.request.method == "POST":
        return _give(visit)
    asked = visit.request.GET.getlist("server")
    return _show(visit, _picked(visit, asked)) if asked else _choose_servers(visit)


@AgentAdmin.add_deed("ask_server", needs=Action.MANAGE_AGENTS)
def ask_server(visit: Visit) -> HttpResponseBase:
    """Ask a server what it offers, and return its panel of the page."""
    [one] = _picked(visit, [visit.request.GET.get("server", "")])
    [answer] = contact([one.server], actor=visit.principal.actor, kind=Check.Kind.DISCOVERY)
    [one] = _picked(visit, [str(one.server.pk)])
    one.problem = answer.problem
    return fragment(
        visit.request, "agents/pick_server.html", agent=visit.object, one=one, told=True
    )


def _choose_servers(visit: Visit) -> HttpResponseBase:
    agent: Agent = visit.object
    pool = Server.objects.for_organization(agent.organization_id).pool()
    rows = pool.exclude(pk__in=agent.bindings.values("server"))
    sought = visit.request.GET.get("q", "").strip()
    for word in sought.split()[:8]:
        rows = rows.filter(Q(name__icontains=word) | Q(description__icontains=word))
    found = list(rows.order_by("name")[: SERVERS_SHOWN + 1])
    return replace(visit, page="servers").show(
        "agents/pick.html",
        agent=agent,
        servers=_with_counts(found[:SERVERS_SHOWN]),
        more=len(found) > SERVERS_SHOWN,
        q=sought,
        any_in_pool=pool.exists(),
    )


def _with_counts(servers: list[Server]) -> list[Server]:
    """Give each server the number of its tools, and of those that are approved: one query."""
    tools = Definition.objects.tools().filter(server__in=servers).order_by()
    usable = tools.callable().values("pk")
    counted = tools.values("server").annotate(
        tool_total=Count("pk", filter=Q(present=True)),
        usable_total=Count("pk", filter=Q(pk__in=usable)),
    )
    counts = {row["server"]: row for row in counted}
    for server in servers:
        row = counts.get(server.pk)
        server.tool_total = row["tool_total"] if row else 0  # type: ignore[attr-defined]
        server.usable_total = row["usable_total"] if row else 0  # type: ignore[attr-defined]
    return servers


def _show(visit: Visit, picked: list[Picked]) -> HttpResponseBase:
    return replace(visit, page="servers").show(
        "agents/pick_tools.html", agent=visit.object, picked=picked
    )


def _give(visit: Visit) -> HttpResponseBase:
    posted: QueryDict = visit.request.POST
    picked = _picked(visit, posted.getlist("server"), posted)
    counts: dict[str, int | None] = {}
    try:
        with transaction.atomic():
            for one in picked:
                counts[one.server.name] = _saved(visit, one)
    except Problem:
        return _show(visit, picked)
    for name, count in counts.items():
        text = _t("%(agent)s gets %(n)d capabilities of %(server)s.")
        everything = _t("%(agent)s gets all that %(server)s offers, also later.")
        values = {"agent": visit.object, "server": name, "n": count}
        messages.success(visit.request, (everything if count is None else text) % values)
    return onward(visit, "servers")


def _saved(visit: Visit, one: Picked) -> int | None:
    """Write one server's choice; what doesn't hold is kept with it, and ends all."""
    try:
        return one.save(visit)
    except Problem as problem:
        one.problem = problem
        raise


def _picked(visit: Visit, ids: Iterable[str], posted: QueryDict | None = None) -> list[Picked]:
    """Return the servers by their ids; raises `NotFound` for one that this agent can't have."""
    agent: Agent = visit.object
    mine = Q(scope_id=agent.organization_id) | Q(scope_id=agent.pk)
    wanted = list(dict.fromkeys(ids))
    try:
        keys = [UUID(one) for one in wanted]
    except ValueError:
        raise _missing(wanted) from None
    servers = Server.objects.for_organization(agent.organization_id).filter(mine, pk__in=keys)
    if not wanted or len(found := list(servers)) != len(wanted):
        raise _missing(wanted)
    bindings = {row.server_id: row for row in agent.bindings.filter(server__in=found)}
    kinds = [*(kind for part in PARTS for kind in part.kinds), *KINDS]
    offered = Definition.objects.filter(server__in=found, kind__in=kinds, present=True)
    rows: dict[UUID, list[Definition]] = {}
    for row in offered.order_by("name"):
        rows.setdefault(row.server_id, []).append(row)
    return [
        Picked(server, bindings.get(server.pk), rows.get(server.pk, []), posted) for server in found
    ]


def _missing(wanted: list[str]) -> NotFound:
    shown = ", ".join(repr(one[:40]) for one in wanted) or "none"
    return NotFound(
        say("There is no such server here: {shown}.", shown=shown),
        field="server",
        remedy="Choose servers of the organization's pool.",
    )
