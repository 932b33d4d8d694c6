"""Budget: how much an agent or an organization may spend in a period."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.tenancy.scoped import GovernedModel


class Budget(GovernedModel):
    """A limit in whole units per period: tokens, micro-dollars or calls (FEATURES X5).

    What was spent is in the ledger's cells, never here.
    """

    class Unit(models.TextChoices):
        """What is counted."""

        TOKENS = "tokens", _("tokens")
        MONEY = "microusd", _("micro-dollars")
        CALLS = "calls", _("calls")

    class Period(models.TextChoices):
        """When counting starts again (UTC)."""

        DAY = "day", _("a day")
        MONTH = "month", _("a month")
        TOTAL = "total", _("in total")

    agent = models.ForeignKey(
        "agents.Agent", on_delete=models.CASCADE, null=True, blank=True, related_name="budgets"
    )
    unit = models.CharField(_("unit"), max_length=10, choices=Unit)
    period = models.CharField(_("period"), max_length=6, choices=Period, default=Period.MONTH)
    limit = models.PositiveBigIntegerField(_("limit"))

    class Meta:
        ordering = ("unit", "period")
        verbose_name = _("budget")
        verbose_name_plural = _("budgets")
        constraints = (
            models.UniqueConstraint(
                fields=["agent", "unit", "period"], name="budget_once_per_agent"
            ),
            models.UniqueConstraint(
                fields=["organization", "unit", "period"],
                condition=models.Q(agent__isnull=True),
                name="budget_once_per_organization",
            ),
        )

    def __str__(self) -> str:
        return f"{self.limit} {self.unit} / {self.period}"
