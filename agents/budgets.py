"""Read and write an agent's budgets: the one way for every surface, audited (FEATURES X5)."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils import timezone

from agents.governance.limits import budget_key
from agents.governance.snapshots import Limit
from agents.models import Agent, Budget
from bonobot.ledger.changes import change
from bonobot.ledger.usage import spent_many
from bonobot.lib.problems import Invalid
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action

# What the ledger can count in one cell, and set aside beside it.
LARGEST = 2**53


@dataclass(frozen=True)
class BudgetLine:
    """How much of a unit (tokens, microusd, calls) may be spent in a period (day, month, total)."""

    unit: str
    period: str
    limit: int


@dataclass(frozen=True)
class BudgetUse:
    """A budget with what is spent of it in the current period, and what running calls hold."""

    line: BudgetLine
    spent: int
    reserved: int


def set_budgets(principal: Principal, agent: Agent, lines: Sequence[BudgetLine]) -> None:
    """Replace the agent's budgets; what was spent stays spent. Raises `Invalid` naming the line."""
    principal.require(Action.MANAGE_AGENTS)
    for index, line in enumerate(lines):
        _check(line, f"budgets[{index}]")
        if (line.unit, line.period) in {(one.unit, one.period) for one in lines[:index]}:
            raise Invalid(
                f"There are two budgets of {line.unit} per {line.period}.",
                field=f"budgets[{index}]",
                remedy="Keep one of them.",
            )
    with change(
        organization_id=agent.organization_id,
        actor=principal.actor,
        action="budgets_changed",
        resource_type="agent",
        resource_id=str(agent.pk),
        resource_name=agent.name,
        details={"budgets": [vars(line) for line in lines]},
    ):
        agent.budgets.all().delete()
        Budget.objects.bulk_create(
            Budget(
                organization_id=agent.organization_id,
                agent=agent,
                unit=line.unit,
                period=line.period,
                limit=line.limit,
            )
            for line in lines
        )


def budgets_in_use(agent: Agent) -> list[BudgetUse]:
    """Return the agent's budgets with their current use (two queries)."""
    rows = list(agent.budgets.all())
    now = timezone.now()
    keys = [
        budget_key(
            agent.organization_id,
            Limit("agent", str(agent.pk), row.unit, row.period, row.limit),
            now,
        )
        for row in rows
    ]
    cells = spent_many(keys)
    return [
        BudgetUse(
            BudgetLine(row.unit, row.period, row.limit), cells[key].spent, cells[key].reserved
        )
        for row, key in zip(rows, keys, strict=True)
    ]


def _check(line: BudgetLine, where: str) -> None:
    for name, value, known in (
        ("unit", line.unit, Budget.Unit.values),
        ("period", line.period, Budget.Period.values),
    ):
        if value not in known:
            raise Invalid(
                f"There is no {name} {value!r}.",
                field=f"{where}.{name}",
                remedy=f"Use one of: {', '.join(known)}.",
            )
    if not 0 <= line.limit <= LARGEST:
        raise Invalid(
            f"The limit is {line.limit}.",
            field=f"{where}.limit",
            remedy=f"Use a whole number from 0 to {LARGEST}.",
        )
