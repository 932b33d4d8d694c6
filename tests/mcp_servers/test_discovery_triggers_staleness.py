"""Stale servers are marked in rows, claimed once, and refreshed at a limited rate."""

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
    stdio_server = factories.create_stdio_server(factories.create_organization())
    Server.objects.filter(pk=stdio_server.pk).update(status="connected")
    return stdio_server


def move_to_past(**fields):
    past = timezone.now() - timedelta(minutes=10)
    ChangeSubscription.objects.update(**dict.fromkeys(fields, past))


def test_a_stale_server_is_claimed_once(server):
    assert refresh_definitions.mark_stale(server.pk, noticed=True)
    assert refresh_definitions.claim_refresh(server.pk).acquired
    second = refresh_definitions.claim_refresh(server.pk, anyway=True)
    assert (second.acquired, second.wait_s) == (False, 10)


def test_a_server_that_isnt_stale_isnt_refreshed(server):
    assert refresh_definitions.claim_refresh(server.pk) == refresh_definitions.RefreshClaim()
    refresh_definitions.mark_stale(server.pk, noticed=False)
    refresh_definitions.finish_refresh(
        server.pk, refresh_definitions.claim_refresh(server.pk), took_s=0, read=True
    )
    move_to_past(refresh_after=True)
    assert refresh_definitions.claim_refresh(server.pk) == refresh_definitions.RefreshClaim()
    assert refresh_definitions.claim_refresh(server.pk, anyway=True).acquired


def test_only_the_server_itself_can_mark_a_change(server):
    refresh_definitions.mark_stale(server.pk, noticed=False)
    assert ChangeSubscription.objects.get().notified_at is None
    refresh_definitions.mark_stale(server.pk, noticed=True)
    assert ChangeSubscription.objects.get().notified_at is not None


def test_a_disabled_or_deleted_server_isnt_marked(server):
    Server.objects.update(enabled=False)
    assert not refresh_definitions.mark_stale(server.pk, noticed=True)
    server.delete()
    assert not refresh_definitions.mark_stale(server.pk, noticed=True)


def test_a_server_marked_during_a_refresh_stays_stale(server):
    refresh_definitions.mark_stale(server.pk, noticed=True)
    claim = refresh_definitions.claim_refresh(server.pk)
    refresh_definitions.mark_stale(server.pk, noticed=True)
    refresh_definitions.finish_refresh(server.pk, claim, took_s=0, read=True)
    assert ChangeSubscription.objects.get().stale_at is not None
    claim = refresh_definitions.claim_refresh(server.pk)
    assert 0 < claim.wait_s <= 10


def test_a_failed_refresh_keeps_the_server_stale(server):
    refresh_definitions.mark_stale(server.pk, noticed=True)
    refresh_definitions.finish_refresh(
        server.pk, refresh_definitions.claim_refresh(server.pk), took_s=0, read=False
    )
    assert ChangeSubscription.objects.get().stale_at is not None


def test_the_schedule_finds_stale_servers_of_a_dead_process(server):
    refresh_definitions.mark_stale(server.pk, noticed=True)
    assert refresh_definitions.list_abandoned_servers() == []  # the notified process comes first
    move_to_past(stale_at=True)
    assert refresh_definitions.list_abandoned_servers() == [server.pk]
    refresh_definitions.claim_refresh(server.pk)
    assert refresh_definitions.list_abandoned_servers() == []
    move_to_past(refresh_after=True)
    Server.objects.update(status="error")
    assert (
        refresh_definitions.list_abandoned_servers() == []
    )  # it is refreshed once it responds again


@given(st.floats(min_value=0, max_value=10_000))
def test_refreshes_use_at_most_a_tenth_of_the_time(took_s):
    pause = refresh_definitions.compute_pause(took_s).total_seconds()
    assert pause >= 10
    assert pause >= 9.99 * took_s
