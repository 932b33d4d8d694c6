"""Live updates of admin pages: one stream of server-sent events for each open page.

A page names its topics. The stream sends a topic's version when it differs from the last one, and
the page loads its part again. A version is a digest of a few rows that an index finds. One task for
each organization reads the versions, however many of its pages are open; the message bus wakes it,
and it polls the rows, because a message may be lost.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from time import monotonic
from typing import Any
from uuid import UUID

from django.db.models import Count, Max

from agents.admin.navigation import OrganizationPendingCounts, load_pending_counts
from agents.approvals.changed_definitions import find_changed_definitions
from agents.models import AccessRequest, Agent, Approval, ElicitationRequest, Session
from agents.wakeups import build_pages_topic
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.message_bus import WakeupListener, listen
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.verify_chain import load_progress
from bonobot.ledger.models import Head
from bonobot.ledger.policy_generations import load_policy_generation
from mcp_servers.models import BulkJob, BulkJobItem, Server

# How often versions are read while a page is open and nothing wakes the task.
POLL_S = 2.0
# Calls wake nothing, so that they cost no more; the version of the audit log is one row by its key.
AUDIT_POLL_S = 0.5
# Each change loads the whole dashboard again, which takes some twenty queries.
DASHBOARD_POLL_S = 5.0
KEEPALIVE_S = 15.0
# Then the browser connects again and is authorized again.
MAX_STREAM_S = 600.0
MAX_ROWS = 200
UNFINISHED_JOB_S = 3.0
COUNTS = "counts"


def _hash_rows(rows: Iterable[Any]) -> str:
    text = json.dumps(list(rows), default=str)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _read_counts(organization_id: UUID) -> str:
    return load_pending_counts(organization_id).to_json()


def _read_approvals(organization_id: UUID) -> str:
    rows = Approval.objects.for_organization(organization_id).pending()
    rows = rows.only("state", "server_id", "own_name", "definition_digest", "code", "method")
    approvals = list(rows.order_by("-created_at")[:MAX_ROWS])
    changed = find_changed_definitions(approvals)
    return _hash_rows((row.pk, row.pk in changed) for row in approvals)


def _read_elicitations(organization_id: UUID) -> str:
    rows = ElicitationRequest.objects.for_organization(organization_id).pending()
    return _hash_rows(rows.order_by("-created_at").values_list("pk", flat=True)[:MAX_ROWS])


def _read_access_requests(organization_id: UUID) -> str:
    rows = AccessRequest.objects.for_organization(organization_id).order_by("-created_at")
    return _hash_rows(rows.values_list("pk", "state")[:MAX_ROWS])


def _read_audit(organization_id: UUID) -> str:
    return str(Head.objects.filter(pk=organization_id).values_list("seq", flat=True).first() or 0)


def _read_policies(organization_id: UUID) -> str:
    """Each change of a rule, a definition, or an attached or enabled server increments it."""
    return str(load_policy_generation(organization_id))


def _read_servers(organization_id: UUID) -> str:
    rows = Server.objects.filter(organization_id=organization_id).order_by("status")
    return _hash_rows(
        rows.values_list("status", "enabled").annotate(
            Count("pk"), Max("last_connected_at"), Max("discovered_at")
        )
    )


def _read_dashboard(organization_id: UUID) -> str:
    return _hash_rows(
        read(organization_id) for read in (_read_audit, _read_counts, _read_servers, _read_sessions)
    )


def _read_agents(organization_id: UUID) -> str:
    agents = Agent.objects.for_organization(organization_id)
    members = Agent.members.through.objects.filter(agent__organization_id=organization_id)
    return _hash_rows(
        [
            agents.aggregate(agents=Count("pk"), updated=Max("updated_at")),
            members.aggregate(members=Count("pk"), latest=Max("pk")),
        ]
    )


def _read_sessions(organization_id: UUID) -> str:
    rows = Session.objects.for_organization(organization_id).with_waits().order_by("-pk")
    return _hash_rows(rows.values_list("pk", "status", "waits_for_answer")[:MAX_ROWS])


def _read_bulk_jobs(organization_id: UUID) -> str:
    jobs = BulkJob.objects.filter(organization_id=organization_id).order_by("-created_at")[:5]
    items = BulkJobItem.objects.filter(job__in=list(jobs)).order_by("job", "state")
    # A job whose worker died changes no row: its page is read again while it isn't finished.
    tick = int(monotonic() // UNFINISHED_JOB_S) if any(not job.finished_at for job in jobs) else 0
    return _hash_rows(
        [
            tick,
            *((job.pk, job.finished_at) for job in jobs),
            *items.values_list("job", "state").annotate(Count("pk")),
        ]
    )


def _read_verification(organization_id: UUID) -> str:
    progress = load_progress(organization_id)
    return progress.at if progress else ""


@dataclass(frozen=True)
class LiveTopic:
    """How to read a topic's version, which action it needs, and how often it is read."""

    read_version: Callable[[UUID], str]
    required_action: Action = Action.VIEW
    poll_s: float = POLL_S


TOPICS: Mapping[str, LiveTopic] = {
    COUNTS: LiveTopic(_read_counts, Action.RUN_AGENTS),
    "approvals": LiveTopic(_read_approvals, Action.RUN_AGENTS),
    "elicitations": LiveTopic(_read_elicitations, Action.RUN_AGENTS),
    "access_requests": LiveTopic(_read_access_requests, Action.RUN_AGENTS),
    "audit": LiveTopic(_read_audit, Action.VIEW_AUDIT, AUDIT_POLL_S),
    "policies": LiveTopic(_read_policies),
    "servers": LiveTopic(_read_servers, Action.RUN_AGENTS),
    "agents": LiveTopic(_read_agents, Action.RUN_AGENTS),
    "sessions": LiveTopic(_read_sessions, Action.RUN_AGENTS),
    "dashboard": LiveTopic(_read_dashboard, poll_s=DASHBOARD_POLL_S),
    "bulk_jobs": LiveTopic(_read_bulk_jobs),
    "verification": LiveTopic(_read_verification, Action.VIEW_AUDIT),
}


def select_topics(principal: Principal, names: Iterable[str]) -> frozenset[str]:
    """Return the known topics that the principal may follow."""
    return frozenset(
        name for name in names if name in TOPICS and _may_follow(principal, TOPICS[name])
    )


def _may_follow(principal: Principal, topic: LiveTopic) -> bool:
    return principal.may(topic.required_action) or principal.may(Action.VIEW)


def read_versions(organization_id: UUID, names: Collection[str]) -> dict[str, str]:
    """Return the current versions of topics (a query or two for each)."""
    return {name: TOPICS[name].read_version(organization_id) for name in sorted(names)}


@dataclass(eq=False)
class LivePage:
    """An open page: its topics, and the versions that it has."""

    topics: frozenset[str]
    versions: dict[str, str] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class OrganizationWatch:
    """The open pages of an organization in this process, and the current versions."""

    def __init__(self, organization_id: UUID) -> None:
        self.organization_id = organization_id
        self.pages: set[LivePage] = set()
        self.versions: dict[str, str] = {}
        self._due_at: dict[str, float] = {}  # monotonic seconds, by topic
        self._listener: WakeupListener | None = None

    def add_page(self, page: LivePage) -> None:
        """Add a page and read the versions of its topics soon."""
        self.pages.add(page)
        if self._listener is not None:
            self._listener.wake()

    async def run(self) -> None:
        """Read the versions and wake pages whose topics changed, as long as pages are open."""
        async with listen(build_pages_topic(self.organization_id)) as self._listener:
            is_woken = True
            while self.pages:
                names: set[str] = set().union(*(page.topics for page in self.pages))
                await self._refresh_versions(names, read_all=is_woken)
                poll_s = min((TOPICS[name].poll_s for name in names), default=POLL_S)
                is_woken = await self._listener.wait(poll_s)

    async def _refresh_versions(self, names: Collection[str], *, read_all: bool) -> None:
        """Read the topics that are due, or all, and wake the pages with a change."""
        now = monotonic()
        due = {name for name in names if read_all or self._due_at.get(name, now) <= now}
        if not due:
            return
        # A wait may end a little early.
        self._due_at |= {name: now + 0.9 * TOPICS[name].poll_s for name in due}
        self.versions |= await get_runtime().run_background_orm(
            read_versions, self.organization_id, due
        )
        for page in self.pages:
            if self.list_changes(page):
                page.changed.set()

    def list_changes(self, page: LivePage) -> dict[str, str]:
        """Return the versions that the page doesn't have yet."""
        return {
            name: version
            for name, version in self.versions.items()
            if name in page.topics and page.versions.get(name) != version
        }


_watches: dict[UUID, OrganizationWatch] = {}


async def stream_changes(principal: Principal, topics: frozenset[str]) -> AsyncIterator[bytes]:
    """Yield changed topics as server-sent events, starting with the current versions.

    Counts are those of the principal.
    """
    page, started_at = LivePage(topics), monotonic()
    watch = _open_watch(principal.organization_id, page)
    try:
        while monotonic() - started_at < MAX_STREAM_S:
            try:
                async with asyncio.timeout(KEEPALIVE_S):
                    await page.changed.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            page.changed.clear()
            changes = watch.list_changes(page)
            page.versions |= changes
            if COUNTS in changes:
                changes[COUNTS] = _select_counts(principal, changes[COUNTS])
            yield b"".join(_encode_event(*change) for change in changes.items())
    finally:
        watch.pages.discard(page)


def _select_counts(principal: Principal, version: str) -> str:
    """Return the principal's counts from the version of the topic, which has those of all."""
    return json.dumps(
        asdict(OrganizationPendingCounts(**json.loads(version)).select_for(principal))
    )


def _open_watch(organization_id: UUID, page: LivePage) -> OrganizationWatch:
    watch = _watches.get(organization_id)
    if watch is not None and watch.pages:
        watch.add_page(page)
        return watch
    watch = _watches[organization_id] = OrganizationWatch(organization_id)
    watch.add_page(page)
    get_runtime().create_task(watch.run(), name="live updates")
    return watch


def _encode_event(name: str, version: str) -> bytes:
    return f"event: {name}\ndata: {version}\n\n".encode()
