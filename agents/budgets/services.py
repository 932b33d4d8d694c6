"""Set budgets, and read them with their use.

An owner is an organization, an agent (including budgets for each of its sessions) or a server.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from agents.budgets.limits import BudgetLimit, build_budget_key, to_whole_units
from agents.models import Agent, Budget, Session
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.ledger.audit.admin_changes import record_change
from bonobot.ledger.budget_balances import load_balances
from bonobot.ledger.budgets import BudgetBalance, parse_budget_key
from mcp_servers.models import Server

# The ledger's maximum amount, divided because seconds are counted in milliseconds.
MAX_LIMIT = 2**53 // 1000
DEFAULT_WARN_AT = 80

Owner = Organization | Agent | Server


@dataclass(frozen=True)
class BudgetLine:
    """How much of a unit (tokens, microusd, calls, seconds) may be spent in a period.

    Periods are day, month and total. With `each_session` (agents only), every session has its own
    budget. People are warned when `warn_at` percent are spent.
    """

    unit: str
    period: str
    limit: int
    each_session: bool = False
    warn_at: int = DEFAULT_WARN_AT


@dataclass(frozen=True)
class BudgetUse:
    """A budget with the amounts spent and reserved in the current period.

    For a budget of each session, they are those of the requested session, else zero.
    """

    id: UUID
    scope: str
    line: BudgetLine
    key: str
    spent: int
    reserved: int

    @property
    def warned(self) -> bool:
        """Whether the warning threshold is reached; never for a limit of 0, which denies all."""
        limit = self.line.limit
        return limit > 0 and self.spent * 100 >= limit * self.line.warn_at

    @property
    def percent(self) -> int:
        """How much of the limit is spent, without reserved amounts."""
        return 100 * self.spent // (self.line.limit or 1)

    @property
    def tone(self) -> str:
        if self.spent >= self.line.limit:
            return "bad"
        return "warn" if self.warned else "good"

    @property
    def period(self) -> str:
        return str(Budget.Period(self.line.period).label)


def list_budgets(owner: Owner) -> QuerySet[Budget]:
    if isinstance(owner, Agent):
        return Budget.objects.filter(agent=owner)
    if isinstance(owner, Server):
        return Budget.objects.filter(server=owner)
    return Budget.objects.filter(organization=owner, agent=None, server=None)


def build_line(row: Budget) -> BudgetLine:
    return BudgetLine(
        row.unit,
        period=row.period,
        limit=row.limit,
        each_session=row.each_session,
        warn_at=row.warn_at,
    )


def set_budgets(principal: Principal, owner: Owner, lines: Sequence[BudgetLine]) -> None:
    """Replace an owner's budgets; spent amounts are kept. Raises `InvalidInput` naming the line."""
    principal.require(_get_required_action(owner))
    for index, line in enumerate(lines):
        _check_line(line, f"budgets[{index}]", owner)
        if _get_line_key(line) in {_get_line_key(earlier_line) for earlier_line in lines[:index]}:
            raise InvalidInput(
                format_message(
                    "There are two budgets for {unit} per {period}.",
                    unit=line.unit,
                    period=line.period,
                ),
                field=f"budgets[{index}]",
                remedy="Remove the duplicate.",
            )
    organization_id = owner.pk if isinstance(owner, Organization) else owner.organization_id
    with record_change(
        organization_id=organization_id,
        actor=principal.actor,
        action="budgets_updated",
        resource_type=_get_resource_type(owner),
        resource_id=str(owner.pk),
        resource_name=owner.name,
        details={"budgets": [asdict(line) for line in lines]},
    ):
        lock_rows(type(owner)._base_manager.filter(pk=owner.pk))
        list_budgets(owner).delete()
        Budget.objects.bulk_create(
            Budget(organization_id=organization_id, **_build_owner_filter(owner), **asdict(line))
            for line in lines
        )


def save_budget(principal: Principal, owner: Owner, line: BudgetLine) -> None:
    """Add a budget to an owner, or replace the one with the same unit and period."""
    with transaction.atomic():
        lock_rows(
            type(owner)._base_manager.filter(pk=owner.pk)
        )  # so that the other lines can't change
        other_lines = [
            other_line
            for other_line in map(build_line, list_budgets(owner))
            if _get_line_key(other_line) != _get_line_key(line)
        ]
        set_budgets(principal, owner, [*other_lines, line])


def delete_budget(principal: Principal, row: Budget) -> None:
    """Delete one budget; the spent amount is kept."""
    owner = row.agent or row.server or row.organization
    other_lines = [build_line(other_row) for other_row in list_budgets(owner).exclude(pk=row.pk)]
    set_budgets(principal, owner, other_lines)


def list_budget_use(owner: Owner) -> list[BudgetUse]:
    """Return an owner's budgets with their current use (two queries)."""
    return load_budget_use(list_budgets(owner))


def list_session_budget_use(session: Session) -> list[BudgetUse]:
    """Return the session's own budgets with their use (two queries)."""
    rows = Budget.objects.filter(agent=session.agent_id, each_session=True)
    return load_budget_use(rows, session_id=session.pk)


def load_budget_use(rows: Iterable[Budget], *, session_id: UUID | None = None) -> list[BudgetUse]:
    """Return budgets with their use in the current period, in whole units."""
    now = timezone.now()
    keys = []
    budgets = list(rows)
    for row in budgets:
        limit = build_limit(row)
        if row.each_session:
            limit = replace(limit, scope_id=str(session_id or ""))
        keys.append(build_budget_key(row.organization_id, limit, now))
    cells = load_balances(keys)
    return [_build_use(row, key, cells[key]) for row, key in zip(budgets, keys, strict=True)]


def _build_use(row: Budget, key: str, balance: BudgetBalance) -> BudgetUse:
    return BudgetUse(
        id=row.pk,
        scope=row.scope,
        line=build_line(row),
        key=key,
        spent=to_whole_units(row.unit, balance.spent),
        reserved=to_whole_units(row.unit, balance.reserved),
    )


def find_budget_use(organization_id: UUID, key: str, agent_id: UUID | None) -> BudgetUse | None:
    """Return the use of the budget with this key, in the key's period (two queries).

    `agent_id` is the agent whose session the key of a session's budget names. None if the budget
    was deleted.
    """
    fields = parse_budget_key(key)
    if fields.get("organization") != str(organization_id):
        return None
    scope, scope_id = fields["scope"], fields["scope_id"]
    owner_filters: dict[str, dict[str, Any]] = {
        "agent": {"agent": scope_id},
        "session": {"agent": agent_id},
        "server": {"server": scope_id},
    }
    row = Budget.objects.filter(
        organization_id=organization_id,
        each_session=scope == "session",
        unit="seconds" if fields["unit"] == "milliseconds" else fields["unit"],
        period=fields["period"],
        **{"agent": None, "server": None, **owner_filters.get(scope, {})},
    ).first()
    if row is None:
        return None
    return _build_use(row, key, load_balances([key])[key])


def _build_owner_filter(owner: Owner) -> dict[str, Any]:
    if isinstance(owner, Organization):
        return {}
    return {"agent" if isinstance(owner, Agent) else "server": owner}


def _get_resource_type(owner: Owner) -> str:
    if isinstance(owner, Organization):
        return "organization"
    return "agent" if isinstance(owner, Agent) else "mcp_server"


def _get_required_action(owner: Owner) -> Action:
    if isinstance(owner, Organization):
        return Action.MANAGE_ORGANIZATION
    return Action.MANAGE_AGENTS if isinstance(owner, Agent) else Action.MANAGE_SERVERS


def _get_line_key(line: BudgetLine) -> tuple[str, str, bool]:
    return line.unit, line.period, line.each_session


def _check_line(line: BudgetLine, field_path: str, owner: Owner) -> None:
    units = Budget.Unit.values
    if isinstance(owner, Server):
        units = [unit for unit in units if unit != Budget.Unit.TOKENS]  # which models use
    for name, value, allowed_values in (
        ("unit", line.unit, units),
        ("period", line.period, Budget.Period.values),
    ):
        if value not in allowed_values:
            raise InvalidInput(
                format_message("{value!r} isn't a valid {name}.", name=name, value=value),
                field=f"{field_path}.{name}",
                remedy=format_message("Use one of: {values}.", values=", ".join(allowed_values)),
            )
    if not 0 <= line.limit <= MAX_LIMIT:
        raise InvalidInput(
            format_message("The limit is {limit}.", limit=line.limit),
            field=f"{field_path}.limit",
            remedy=format_message("Use a whole number from 0 to {largest}.", largest=MAX_LIMIT),
        )
    if not 1 <= line.warn_at <= 100:
        raise InvalidInput(
            format_message("`warn_at` is {warn_at} percent.", warn_at=line.warn_at),
            field=f"{field_path}.warn_at",
            remedy="Use a whole number from 1 to 100.",
        )
    if line.each_session and not isinstance(owner, Agent):
        raise InvalidInput(
            "Only agents have sessions.",
            field=f"{field_path}.each_session",
            remedy="Set it on the agent.",
        )


def load_limits(
    organization_id: UUID, servers: Iterable[UUID], agent: Agent | None = None
) -> tuple[BudgetLimit, ...]:
    """Return all budget limits that may apply to calls; `select_limits` selects per call."""
    owner_filter = Q(agent=None, server=None) | Q(server__in=list(servers))
    if agent is not None:
        owner_filter |= Q(agent=agent)
    rows = Budget.objects.filter(owner_filter, organization_id=organization_id)
    return tuple(build_limit(row) for row in rows)


def build_limit(row: Budget) -> BudgetLimit:
    """Return the limit of a budget; for each-session budgets without a session id yet."""
    owner = row.server_id or (None if row.each_session else row.agent_id or row.organization_id)
    return BudgetLimit(
        row.scope, scope_id=str(owner or ""), unit=row.unit, period=row.period, limit=row.limit
    )
