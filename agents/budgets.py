"""Read and write budgets: the one way for every surface, audited (FEATURES X5).

An owner is an organization (its own budgets), an agent (also those for each of its sessions) or a
server.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from agents.governance.limits import budget_key, whole
from agents.governance.rulings import limit_of
from agents.models import Agent, Budget, Session
from bonobot.ledger.changes import change
from bonobot.ledger.usage import spent_many
from bonobot.lib.problems import Invalid
from bonobot.lib.row_locks import lock
from bonobot.lib.sayings import say
from bonobot.tenancy.models import Organization
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.models import Server

# What the ledger can count in one cell, and set aside beside it; seconds count as milliseconds.
LARGEST = 2**53 // 1000
WARN_AT = 80

Owner = Organization | Agent | Server


@dataclass(frozen=True)
class BudgetLine:
    """How much of a unit (tokens, microusd, calls, seconds) may be spent in a period.

    Periods are day, month and total. `each_session` is for agents: every session of it has that
    much for itself. People are warned when `warn_at` percent are spent.
    """

    unit: str
    period: str
    limit: int
    each_session: bool = False
    warn_at: int = WARN_AT


@dataclass(frozen=True)
class BudgetUse:
    """A budget with what is spent of it in the current period, and what running calls hold.

    Of one for each session it is that of the session that was asked for, else zero.
    """

    id: UUID
    scope: str
    line: BudgetLine
    key: str
    spent: int
    reserved: int

    @property
    def warned(self) -> bool:
        """Tell whether as much is spent as people are warned at."""
        return self.spent * 100 >= self.line.limit * self.line.warn_at

    @property
    def tone(self) -> str:
        """Return what the use means to the eye."""
        if self.spent >= self.line.limit:
            return "bad"
        return "warn" if self.warned else "good"

    @property
    def period(self) -> str:
        """Return the period in words."""
        return str(Budget.Period(self.line.period).label)


def budgets_of(owner: Owner) -> QuerySet[Budget]:
    """Return an owner's budgets."""
    if isinstance(owner, Agent):
        return Budget.objects.filter(agent=owner)
    if isinstance(owner, Server):
        return Budget.objects.filter(server=owner)
    return Budget.objects.filter(organization=owner, agent=None, server=None)


def line_of(row: Budget) -> BudgetLine:
    """Return a stored budget in the words of whoever sets it."""
    return BudgetLine(row.unit, row.period, row.limit, row.each_session, row.warn_at)


def set_budgets(principal: Principal, owner: Owner, lines: Sequence[BudgetLine]) -> None:
    """Replace an owner's budgets; what was spent stays spent. Raises `Invalid` naming the line."""
    principal.require(_needed(owner))
    for index, line in enumerate(lines):
        _check(line, f"budgets[{index}]", owner)
        if _place(line) in {_place(one) for one in lines[:index]}:
            raise Invalid(
                say(
                    "There are two budgets of {unit} per {period}.",
                    unit=line.unit,
                    period=line.period,
                ),
                field=f"budgets[{index}]",
                remedy="Keep one of them.",
            )
    organization_id = owner.pk if isinstance(owner, Organization) else owner.organization_id
    with change(
        organization_id=organization_id,
        actor=principal.actor,
        action="budgets_changed",
        resource_type=_kind(owner),
        resource_id=str(owner.pk),
        resource_name=owner.name,
        details={"budgets": [asdict(line) for line in lines]},
    ):
        lock(type(owner)._base_manager.filter(pk=owner.pk))
        budgets_of(owner).delete()
        Budget.objects.bulk_create(
            Budget(organization_id=organization_id, **_owned(owner), **asdict(line))
            for line in lines
        )


def change_budget(principal: Principal, owner: Owner, line: BudgetLine) -> None:
    """Add a budget to an owner's, or replace the one of the same unit and period."""
    with transaction.atomic():
        lock(type(owner)._base_manager.filter(pk=owner.pk))  # the others stay as they are by then
        kept = [one for one in map(line_of, budgets_of(owner)) if _place(one) != _place(line)]
        set_budgets(principal, owner, [*kept, line])


def remove_budget(principal: Principal, row: Budget) -> None:
    """Remove one budget; what was spent stays spent."""
    owner = row.agent or row.server or row.organization
    kept = [line_of(one) for one in budgets_of(owner).exclude(pk=row.pk)]
    set_budgets(principal, owner, kept)


def budgets_in_use(owner: Owner) -> list[BudgetUse]:
    """Return an owner's budgets with their current use (two queries)."""
    return uses(budgets_of(owner))


def session_budgets_in_use(session: Session) -> list[BudgetUse]:
    """Return the budgets that a session has for itself, with their use (two queries)."""
    rows = Budget.objects.filter(agent=session.agent_id, each_session=True)
    return uses(rows, session_id=session.pk)


def uses(rows: Iterable[Budget], *, session_id: UUID | None = None) -> list[BudgetUse]:
    """Return budgets with their use in the period that is now, in whole units of theirs."""
    now = timezone.now()
    keys = []
    found = list(rows)
    for row in found:
        limit = limit_of(row)
        if row.each_session:
            limit = replace(limit, scope_id=str(session_id or ""))
        keys.append(budget_key(row.organization_id, limit, now))
    cells = spent_many(keys)
    return [
        BudgetUse(
            id=row.pk,
            scope=row.scope,
            line=line_of(row),
            key=key,
            spent=whole(row.unit, cells[key].spent),
            reserved=whole(row.unit, cells[key].reserved),
        )
        for row, key in zip(found, keys, strict=True)
    ]


def _owned(owner: Owner) -> dict[str, Any]:
    if isinstance(owner, Organization):
        return {}
    return {"agent" if isinstance(owner, Agent) else "server": owner}


def _kind(owner: Owner) -> str:
    if isinstance(owner, Organization):
        return "organization"
    return "agent" if isinstance(owner, Agent) else "mcp_server"


def _needed(owner: Owner) -> Action:
    if isinstance(owner, Organization):
        return Action.MANAGE_ORGANIZATION
    return Action.MANAGE_AGENTS if isinstance(owner, Agent) else Action.MANAGE_SERVERS


def _place(line: BudgetLine) -> tuple[str, str, bool]:
    return line.unit, line.period, line.each_session


def _check(line: BudgetLine, where: str, owner: Owner) -> None:
    units = Budget.Unit.values
    if isinstance(owner, Server):
        units = [unit for unit in units if unit != Budget.Unit.TOKENS]  # which models use
    for name, value, known in (
        ("unit", line.unit, units),
        ("period", line.period, Budget.Period.values),
    ):
        if value not in known:
            raise Invalid(
                say("There is no {name} {value!r} here.", name=name, value=value),
                field=f"{where}.{name}",
                remedy=say("Use one of: {known}.", known=", ".join(known)),
            )
    if not 0 <= line.limit <= LARGEST:
        raise Invalid(
            say("The limit is {limit}.", limit=line.limit),
            field=f"{where}.limit",
            remedy=say("Use a whole number from 0 to {largest}.", largest=LARGEST),
        )
    if not 1 <= line.warn_at <= 100:
        raise Invalid(
            say("A warning at {warn_at} percent.", warn_at=line.warn_at),
            field=f"{where}.warn_at",
            remedy="Use a whole number from 1 to 100.",
        )
    if line.each_session and not isinstance(owner, Agent):
        raise Invalid(
            "Only agents have sessions.",
            field=f"{where}.each_session",
            remedy="Set it at the agent.",
        )
