"""Retention of the audit log by organization."""

import logging
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from bonobot.accounts.models import Organization
from bonobot.ledger.audit import prune_chain
from bonobot.ledger.models import Head
from bonobot.ledger.types import Actor

logger = logging.getLogger(__name__)

RETENTION_ACTOR = Actor(kind="system", id="retention", label="retention")


def load_retention_days() -> dict[UUID, int]:
    """Return the retention in days by organization, without those that keep entries forever.

    Organizations without a value of their own, and deleted ones, use `BONOBOT_AUDIT_DAYS`.
    """
    organization_days = dict(Organization.objects.values_list("pk", "audit_days"))
    default_days: int = settings.BONOBOT_AUDIT_DAYS
    days_by_organization = {}
    for organization_id in Head.objects.values_list("organization_id", flat=True):
        own_days = organization_days.get(organization_id)
        days_by_organization[organization_id] = default_days if own_days is None else own_days
    return {organization_id: days for organization_id, days in days_by_organization.items() if days}


def prune_expired_entries() -> int:
    """Delete entries past their organization's retention; return the number of rows.

    With `BONOBOT_AUDIT_ARCHIVE`, entries are written to that folder first. If that fails they are
    kept, and the next organization is processed.
    """
    return sum(
        _prune_organization(organization_id, days)
        for organization_id, days in load_retention_days().items()
    )


def _prune_organization(organization_id: UUID, days: int) -> int:
    before = timezone.now() - timedelta(days=days)
    folder = settings.BONOBOT_AUDIT_ARCHIVE
    if not folder:
        return prune_chain.prune_entries(organization_id, before=before, actor=RETENTION_ACTOR).rows
    try:
        return prune_chain.prune_to_folder(
            organization_id, before=before, actor=RETENTION_ACTOR, folder=Path(folder)
        ).rows
    except OSError as error:
        logger.error("The audit of %s stays: it can't be archived (%s)", organization_id, error)
        return 0
