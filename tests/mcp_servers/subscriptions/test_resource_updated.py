"""Following: one process has a server tell of a resource, and all that want it are told."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.runtime import get_runtime
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.models import ResourceSubscription, Server
from mcp_servers.oauth_client.access_tokens import build_person_endpoint
from mcp_servers.subscriptions import leases, resource_updated
from mcp_servers.subscriptions.leases import UpdateSource
from mcp_servers.subscriptions.resource_updated import (
    ResourceWatcher,
    can_watch_resources,
    load_source_access,
)
from tests import factories
from tests.agents.conftest import acme, helper
from tests.resource_updates import PAPER, SECRET, print_edition, printing, subscribed
from tests.wait import eventually

__all__ = ["acme", "helper", "print_edition"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def news(acme: Organization, helper: Agent, print_edition: Callable[..., str]) -> Server:
    return subscribed(acme, helper, print_edition())


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ResourceWatcher, ResourceWatcher]]:
    """Two followers, as two processes have them, that hear what each one's own feeds hear."""
    monkeypatch.setattr(resource_updated, "BEAT_S", 0.0)
    monkeypatch.setattr(resource_updated, "TICK_S", 0.05)
    made = ResourceWatcher(), ResourceWatcher()
    by_feed = resource_updated.handle_change_notification

    def hear(server_id, notice):
        by_feed(server_id, notice)
        for one in made:
            one.handle_notification(notice)

    monkeypatch.setattr(
        "mcp_servers.client.change_notifications.change_notification_listeners", [hear]
    )
    yield made
    for one in made:
        get_runtime().call(one.stop)


def follow(
    follower: ResourceWatcher, server: Server, *uris: str, who: Principal | None = None
) -> dict[str, int]:
    person = UUID(who.id) if who else None
    endpoint = build_endpoint(server)
    found = build_person_endpoint(endpoint, person) if person else endpoint
    return get_runtime().call(follower.watch_resources, found, uris)


def source(server: Server, who: Principal | None = None) -> UpdateSource:
    return UpdateSource(server.pk, UUID(who.id) if who else None)


def changes(
    follower: ResourceWatcher, server: Server, uri: str = PAPER, who: Principal | None = None
) -> int | None:
    async def read() -> int | None:
        return follower.find_change_count((source(server, who), uri))

    return get_runtime().call(read)


def tell(
    follower: ResourceWatcher, server: Server, uri: str = PAPER, who: Principal | None = None
) -> None:
    """Have a follower hear what its feed would."""

    async def say() -> None:
        feed = follower._feeds[source(server, who)]
        follower.handle_notification(
            resource_updated.ChangeNotification("resources", uri, feed.holder)
        )

    get_runtime().call(say)


def test_a_resource_is_subscribed_once_and_all_subscribers_are_notified(
    news: Server, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    for one in processes:
        assert follow(one, news, PAPER, "news://nothing") == {PAPER: 0, "news://nothing": 0}
    assert set(ResourceSubscription.objects.values_list("holder", flat=True)) == {processes[0].id}
    assert not processes[1]._feeds
    tell(processes[0], news)
    for one in processes:
        eventually(lambda one=one: changes(one, news) == 1, what="the change")


def test_another_process_takes_over_and_reports_changes_in_between(
    news: Server, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    for one in processes:
        follow(one, news, PAPER)
    get_runtime().call(processes[0].stop)
    eventually(lambda: changes(processes[1], news) == 1, what="the take-over")
    assert ResourceSubscription.objects.get().holder == processes[1].id


def test_the_subscriptions_of_a_dead_process_are_taken_over(
    news: Server, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    follow(processes[1], news, SECRET)
    row = ResourceSubscription.objects.get()
    old = row.heartbeat_at - leases.LEASE - timedelta(seconds=1)
    ResourceSubscription.objects.filter(pk=row.pk).update(holder=uuid4(), heartbeat_at=old)
    eventually(
        lambda: ResourceSubscription.objects.get(pk=row.pk).holder == processes[1].id,
        what="the take-over",
    )


def test_a_deleted_subscription_row_is_created_again(
    news: Server, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    follow(processes[0], news, PAPER)
    ResourceSubscription.objects.all().delete()
    eventually(
        lambda: ResourceSubscription.objects.filter(state="granted").exists(), what="the row"
    )


def test_the_resources_of_a_server_that_comes_back_count_as_changed(
    news: Server, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    assert follow(processes[0], news, PAPER) == {PAPER: 0}
    feed = processes[0]._feeds[UpdateSource(news.pk)]
    get_runtime().loop.call_soon_threadsafe(feed._close_connection)  # as when the stream breaks off
    eventually(lambda: changes(processes[0], news) == 1, what="the change")


def test_an_unavailable_or_disabled_server_grants_no_subscription(
    acme: Organization, helper: Agent, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    with printing() as url:
        server = subscribed(acme, helper, url)
        Server.objects.filter(pk=server.pk).update(enabled=False)
        assert follow(processes[0], server, PAPER) == {}
        Server.objects.filter(pk=server.pk).update(enabled=True)
    assert follow(processes[0], server, PAPER) == {}
    eventually(lambda: not processes[0]._feeds, what="the end of the feed")


def test_a_reconfigured_server_is_subscribed_again(
    news: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    print_edition: Callable[..., str],
) -> None:
    follow(processes[0], news, PAPER)
    Server.objects.filter(pk=news.pk).update(endpoint_config={"url": print_edition()})
    eventually(lambda: changes(processes[0], news) == 1, what="the new connection")


def test_a_resource_without_subscribers_is_unsubscribed(
    news: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "UNWANTED_AFTER", timedelta())
    follow(processes[0], news, PAPER)
    get_runtime().loop.call_soon_threadsafe(
        processes[0].unwatch_resources, [(UpdateSource(news.pk), PAPER)]
    )
    eventually(lambda: not ResourceSubscription.objects.exists(), what="the end of the row")
    eventually(lambda: not processes[0]._feeds, what="the end of the feed")


def test_a_recently_unsubscribed_resource_is_available_immediately(
    news: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource_updated, "GRANT_TIMEOUT_S", 5.0)
    follow(processes[0], news, PAPER)
    get_runtime().call(_left, processes[0], (UpdateSource(news.pk), PAPER))
    assert follow(processes[0], news, PAPER) == {PAPER: 0}


async def _left(follower: ResourceWatcher, key: resource_updated.Key) -> None:
    follower.unwatch_resources([key])


def test_a_subscriber_that_leaves_while_waiting_leaves_no_row(
    news: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_: object) -> None:
        raise LookupError

    monkeypatch.setattr(leases, "add_watched_resources", away)
    with pytest.raises(LookupError):
        follow(processes[0], news, PAPER)
    assert changes(processes[0], news) is None


def test_only_servers_with_resource_subscriptions_are_subscribed(news: Server) -> None:
    found = build_endpoint(news)
    assert can_watch_resources(found)
    news.discovery = {"capabilities": {"resources": {"listChanged": True}}}
    assert not can_watch_resources(build_endpoint(news))


def test_an_unavailable_database_loses_no_change(
    news: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    follow(processes[0], news, PAPER)
    own, faults = (
        leases.increment_change_counts,
        iter([resource_updated.UNAVAILABLE_ERRORS[0]("away")]),
    )

    def changed(*args: object) -> None:
        for fault in faults:
            raise fault
        own(*args)

    monkeypatch.setattr(leases, "increment_change_counts", changed)
    tell(processes[0], news)
    eventually(lambda: changes(processes[0], news) == 1, what="the change")


@pytest.fixture
def people(acme: Organization) -> tuple[Principal, Principal]:
    return tuple(factories.create_member(acme, Role.OPERATOR, name) for name in ("ann", "ben"))


@pytest.fixture(params=["modern", "handshake"])
def personal(
    request: pytest.FixtureRequest,
    acme: Organization,
    helper: Agent,
    people: tuple[Principal, Principal],
    print_edition: Callable[..., str],
) -> Server:
    """A server of each era that each person signs in to; both have."""
    how = ["people", *(["handshake"] if request.param == "handshake" else [])]
    return subscribed(acme, helper, print_edition(*how), readers=people)


def test_subscriptions_of_two_people_are_separate_across_processes(
    personal: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    people: tuple[Principal, Principal],
) -> None:
    one, other = processes
    ann, ben = people
    for process, who in ((one, ann), (other, ben), (other, ann), (one, ben)):
        assert follow(process, personal, PAPER, who=who) == {PAPER: 0}
    assert (set(one._feeds), set(other._feeds)) == (
        {source(personal, ann)},
        {source(personal, ben)},
    )
    tell(one, personal, who=ann)
    for process in processes:
        eventually(lambda p=process: changes(p, personal, who=ann) == 1, what="the change")
    tell(other, personal, who=ben)
    tell(other, personal, who=ben)
    for process in processes:
        eventually(lambda p=process: changes(p, personal, who=ben), what="the change")
        assert changes(process, personal, who=ann) == 1


@pytest.mark.parametrize("personal", ["modern"], indirect=True)
def test_another_process_continues_with_the_sign_in_of_the_same_person(
    personal: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    people: tuple[Principal, Principal],
) -> None:
    ann, ben = people
    for process, who in ((processes[0], ann), (processes[1], ann), (processes[1], ben)):
        follow(process, personal, PAPER, who=who)
    get_runtime().call(processes[0].stop)
    eventually(lambda: changes(processes[1], personal, who=ann) == 1, what="the take-over")
    assert changes(processes[1], personal, who=ben) == 0


@pytest.mark.parametrize("personal", ["modern"], indirect=True)
def test_a_person_whose_sign_in_is_refused_gets_no_notifications(
    personal: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    people: tuple[Principal, Principal],
) -> None:
    ann, _ = people
    own = personal.auth_config
    assert follow(processes[0], personal, PAPER, who=ann) == {PAPER: 0}
    for config in ({**own, "per": "organization"}, own):
        Server.objects.filter(pk=personal.pk).update(auth_config=config)
        now = Server.objects.get(pk=personal.pk)
        of_all = UpdateSource(personal.pk)
        found = get_runtime().call(
            get_runtime().run_orm, load_source_access, {source(personal, ann): -1, of_all: -1}
        )
        assert set(found) == {source(now, ann) if config is own else of_all}


def test_a_subscription_that_ends_during_a_delay_ends_immediately(
    acme: Organization, helper: Agent, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    with printing() as url:
        server = subscribed(acme, helper, url)
    assert follow(processes[0], server, PAPER) == {}  # nothing is there: the next try comes later
    eventually(lambda: not len(processes[0]._tasks) - 1, what="the end of all but the look-out")
