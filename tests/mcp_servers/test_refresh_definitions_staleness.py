"""Stale catalogues: marked in rows, claimed once, and never read more often than is fair."""

from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers import refresh_definitions
from mcp_servers.models import ChangeSubscription, Server
from tests import factories


@pytest.fixture
def server(db):
    made = factories.create_stdio_server(factories.create_organization())
    Server.objects.filter(pk=made.pk).update(status="connected")
    return made


def grow_old(**moments):
    then = timezone.now() - timedelta(minutes=10)
    ChangeSubscription.objects.update(**dict.fromkeys(moments, then))


def test_a_mark_is_claimed_once(server):
    assert refresh_definitions.mark_stale(server.pk, noticed=True)
    assert refresh_definitions.claim_refresh(server.pk).acquired
    again = refresh_definitions.claim_refresh(server.pk, anyway=True)
    assert (again.acquired, again.wait_s) == (False, 10)


def test_what_nobody_marked_is_not_read(server):
    assert refresh_definitions.claim_refresh(server.pk) == refresh_definitions.RefreshClaim()
    refresh_definitions.mark_stale(server.pk, noticed=False)
    refresh_definitions.finish_refresh(
        server.pk, refresh_definitions.claim_refresh(server.pk), took_s=0, read=True
    )
    grow_old(reread_after=True)
    assert refresh_definitions.claim_refresh(server.pk) == refresh_definitions.RefreshClaim()
    assert refresh_definitions.claim_refresh(server.pk, anyway=True).acquired


def test_only_the_servers_own_word_counts_as_a_notice(server):
    refresh_definitions.mark_stale(server.pk, noticed=False)
    assert ChangeSubscription.objects.get().noticed_at is None
    refresh_definitions.mark_stale(server.pk, noticed=True)
    assert ChangeSubscription.objects.get().noticed_at is not None


def test_a_server_that_is_off_or_gone_is_not_marked(server):
    Server.objects.update(enabled=False)
    assert not refresh_definitions.mark_stale(server.pk, noticed=True)
    server.delete()
    assert not refresh_definitions.mark_stale(server.pk, noticed=True)


def test_what_is_marked_during_a_reading_stays_stale(server):
    refresh_definitions.mark_stale(server.pk, noticed=True)
    claim = refresh_definitions.claim_refresh(server.pk)
    refresh_definitions.mark_stale(server.pk, noticed=True)
    refresh_definitions.finish_refresh(server.pk, claim, took_s=0, read=True)
    assert ChangeSubscription.objects.get().stale_at is not None
    claim = refresh_definitions.claim_refresh(server.pk)
    assert 0 < claim.wait_s <= 10


def test_a_reading_that_failed_leaves_the_mark(server):
    refresh_definitions.mark_stale(server.pk, noticed=True)
    refresh_definitions.finish_refresh(
        server.pk, refresh_definitions.claim_refresh(server.pk), took_s=0, read=False
    )
    assert ChangeSubscription.objects.get().stale_at is not None


def test_the_sweep_finds_what_a_dead_process_left(server):
    refresh_definitions.mark_stale(server.pk, noticed=True)
    assert refresh_definitions.list_abandoned_servers() == []  # who heard it comes first
    grow_old(stale_at=True)
    assert refresh_definitions.list_abandoned_servers() == [server.pk]
    refresh_definitions.claim_refresh(server.pk)
    assert refresh_definitions.list_abandoned_servers() == []
    grow_old(reread_after=True)
    Server.objects.update(status="error")
    assert refresh_definitions.list_abandoned_servers() == []  # it is asked when it answers again


@given(st.floats(min_value=0, max_value=10_000))
def test_a_reading_gets_a_tenth_of_the_time_at_most(took_s):
    pause = refresh_definitions.compute_pause(took_s).total_seconds()
    assert pause >= 10
    assert pause >= 9.99 * took_s
