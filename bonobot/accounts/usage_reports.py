"""Usage reports that a principal may see."""

from datetime import datetime

from bonobot.accounts.models.organizations import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.ledger.usage import query_rollups
from bonobot.ledger.usage.report import UsageQuery, UsageReport, build_usage_report


def load_usage_report(
    principal: Principal,
    query: UsageQuery,
    now: datetime | None = None,
    *,
    max_lines: int = query_rollups.MAX_LINES,
) -> UsageReport:
    """Return a report of the principal's organization; raises `Forbidden`, `InvalidInput`.

    It has at most `max_lines` lines, those with the most calls. Platform administrators see all
    organizations, others their own.
    """
    principal.require(Action.VIEW_AUDIT)
    return build_usage_report(
        principal.organization_id,
        query,
        now,
        all_organizations=principal.platform_admin,
        load_organization_names=lambda: dict(Organization.objects.values_list("pk", "name")),
        limit=max_lines,
    )
