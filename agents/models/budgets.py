"""Model of budgets for organizations, agents, sessions and servers."""

from collections.abc import Mapping
from typing import Any, Literal

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from bonobot.accounts.models.abstract_models import GovernedModel
from bonobot.core.i18n.localization import format_dollars, format_number
from bonobot.core.text.amounts import MICROUSD_PER_USD

# Amounts of the units that aren't money.
UNIT_AMOUNTS: Mapping[str, Any] = {
    "tokens": ngettext_lazy("%(n)s token", "%(n)s tokens", "count"),
    "calls": ngettext_lazy("%(n)s call", "%(n)s calls", "count"),
    "seconds": ngettext_lazy("%(n)s second", "%(n)s seconds", "count"),
}

BudgetScope = Literal["organization", "agent", "session", "server"]


def format_amount(value: int, unit: str) -> str:
    """Return an amount with its unit, such as "1 call" or "$12.50"."""
    if unit == Budget.Unit.MONEY:
        decimals = ",.2f" if value >= 100_000 or not value else ",.4f"
        return format_dollars(value / MICROUSD_PER_USD, decimals)
    return str(UNIT_AMOUNTS[unit] % {"count": value, "n": format_number(value)})


class Budget(GovernedModel):
    """A limit in whole units per period.

    Without an agent or a server, it applies to the organization. An agent's budget with
    `each_session` applies to each of its sessions separately; a server's to all calls of that
    server. Usage is stored in the ledger's cells.
    """

    class Unit(models.TextChoices):
        """What is counted; seconds are the run time of calls and model turns."""

        TOKENS = "tokens", _("tokens")
        MONEY = "microusd", _("dollars")
        CALLS = "calls", _("calls")
        SECONDS = "seconds", _("seconds")

    class Period(models.TextChoices):
        """When counting starts again (UTC)."""

        DAY = "day", _("per day")
        MONTH = "month", _("per month")
        TOTAL = "total", _("in total")

    agent = models.ForeignKey(
        "agents.Agent", on_delete=models.CASCADE, null=True, blank=True, related_name="budgets"
    )
    server = models.ForeignKey(
        "mcp_servers.Server", on_delete=models.CASCADE, null=True, blank=True, related_name="+"
    )
    each_session = models.BooleanField(_("per session"), default=False, db_default=False)
    unit = models.CharField(_("unit"), max_length=10, choices=Unit)
    period = models.CharField(_("period"), max_length=6, choices=Period, default=Period.MONTH)
    limit = models.PositiveBigIntegerField(_("limit"))
    warn_at = models.PositiveSmallIntegerField(
        _("warn at (%)"),
        default=80,
        db_default=80,
        validators=[MinValueValidator(1), MaxValueValidator(100)],
    )

    class Meta:
        ordering = ("each_session", "unit", "period")
        verbose_name = _("budget")
        verbose_name_plural = _("budgets")
        constraints = (
            models.UniqueConstraint(
                fields=["agent", "each_session", "unit", "period"], name="budget_once_per_agent"
            ),
            models.UniqueConstraint(
                fields=["server", "unit", "period"], name="budget_once_per_server"
            ),
            models.UniqueConstraint(
                fields=["organization", "unit", "period"],
                condition=models.Q(agent__isnull=True, server__isnull=True),
                name="budget_once_per_organization",
            ),
            models.CheckConstraint(
                condition=models.Q(server__isnull=True)
                | models.Q(agent__isnull=True, each_session=False),
                name="budget_of_one_kind",
            ),
            models.CheckConstraint(
                condition=models.Q(each_session=False) | models.Q(agent__isnull=False),
                name="budget_of_sessions_has_agent",
            ),
            models.CheckConstraint(
                condition=models.Q(warn_at__gte=1, warn_at__lte=100), name="budget_warn_at"
            ),
        )

    def __str__(self) -> str:
        return f"{format_amount(self.limit, self.unit)} {self.get_period_display()}"

    @property
    def scope(self) -> BudgetScope:
        """Return whose usage counts."""
        if self.server_id is not None:
            return "server"
        if self.agent_id is not None:
            return "session" if self.each_session else "agent"
        return "organization"
