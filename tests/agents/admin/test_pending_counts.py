"""The counts of the menu: of one organization, at the time of the request."""

import pytest
from django.utils import timezone

from agents.admin.pending_counts import load_pending_counts
from agents.models import Approval
from tests import factories

pytestmark = pytest.mark.django_db


def test_each_organization_gets_its_own_counts_of_what_is_pending_now() -> None:
    acme, other_organization = (
        factories.create_organization("acme"),
        factories.create_organization("other"),
    )
    _session, approval = factories.create_waiting_session(factories.create_agent(acme), "hello")
    factories.create_access_request(other_organization)
    for _ in range(2):  # the second time with the query of the first
        counts, other_counts = (
            load_pending_counts(acme.pk),
            load_pending_counts(other_organization.pk),
        )
        assert (counts.calls, counts.access_requests, counts.inbox) == (1, 0, 1)
        assert (other_counts.calls, other_counts.access_requests, other_counts.inbox) == (0, 1, 1)
    Approval.objects.filter(pk=approval.pk).update(expires_at=timezone.now())
    assert load_pending_counts(acme.pk).inbox == 0
