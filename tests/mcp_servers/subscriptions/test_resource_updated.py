"""One process subscribes to a resource, and all subscribers are notified."""

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
from tests.resource_updates import PAPER, SECRET, create_news_server, edition_url, run_news_server
from tests.wait import eventually

__all__ = ["acme", "edition_url", "helper"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def news(acme: Organization, helper: Agent, edition_url: Callable[..., str]) -> Server:
    return create_news_server(acme, helper, edition_url())


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ResourceWatcher, ResourceWatcher]]:
    """Return two watchers, like those of two processes, that share notifications."""
    monkeypatch.setattr(resource_updated, "BEAT_S", 0.0)
    monkeypatch.setattr(resource_updated, "TICK_S", 0.05)
    watchers = ResourceWatcher(), ResourceWatcher()
    original = resource_updated.handle_change_notification

    def handle(server_id, notification):
        original(server_id, notification)
        for watcher in watchers:
            watcher.handle_notification(notification)

    monkeypatch.setattr(
        "mcp_servers.client.change_notifications.change_notification_listeners", [handle]
    )
    yield watchers
    for watcher in watchers:
        get_runtime().call(watcher.stop)


def watch(
    watcher: ResourceWatcher, server: Server, *uris: str, principal: Principal | None = None
) -> dict[str, int]:
    user_id = UUID(principal.id) if principal else None
    endpoint = build_endpoint(server)
    account_endpoint = build_person_endpoint(endpoint, user_id) if user_id else endpoint
    return get_runtime().call(watcher.watch_resources, account_endpoint, uris)


def build_source(server: Server, principal: Principal | None = None) -> UpdateSource:
    return UpdateSource(server.pk, UUID(principal.id) if principal else None)


def find_change_count(
    watcher: ResourceWatcher, server: Server, uri: str = PAPER, principal: Principal | None = None
) -> int | None:
    async def read() -> int | None:
        return watcher.find_change_count((build_source(server, principal), uri))

    return get_runtime().call(read)


def deliver_change(
    watcher: ResourceWatcher, server: Server, uri: str = PAPER, principal: Principal | None = None
) -> None:
    """Deliver a notification to a watcher, as its feed would."""

    async def deliver() -> None:
        feed = watcher._feeds[build_source(server, principal)]
        watcher.handle_notification(
            resource_updated.ChangeNotification("resources", uri, feed.holder)
        )

    get_runtime().call(deliver)


def test_a_resource_is_subscribed_once_and_all_subscribers_are_notified(
    news: Server, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    for process in processes:
        assert watch(process, news, PAPER, "news://nothing") == {PAPER: 0, "news://nothing": 0}
    assert set(ResourceSubscription.objects.values_list("holder", flat=True)) == {processes[0].id}
    assert not processes[1]._feeds
    deliver_change(processes[0], news)
    for process in processes:
        eventually(lambda process=process: find_change_count(process, news) == 1, what="the change")


def test_another_process_takes_over_and_reports_changes_in_between(
    news: Server, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    for process in processes:
        watch(process, news, PAPER)
    get_runtime().call(processes[0].stop)
    eventually(lambda: find_change_count(processes[1], news) == 1, what="the take-over")
    assert ResourceSubscription.objects.get().holder == processes[1].id


def test_the_subscriptions_of_a_dead_process_are_taken_over(
    news: Server, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    watch(processes[1], news, SECRET)
    row = ResourceSubscription.objects.get()
    expired = row.heartbeat_at - leases.LEASE - timedelta(seconds=1)
    ResourceSubscription.objects.filter(pk=row.pk).update(holder=uuid4(), heartbeat_at=expired)
    eventually(
        lambda: ResourceSubscription.objects.get(pk=row.pk).holder == processes[1].id,
        what="the take-over",
    )


def test_a_deleted_subscription_row_is_created_again(
    news: Server, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    watch(processes[0], news, PAPER)
    ResourceSubscription.objects.all().delete()
    eventually(
        lambda: ResourceSubscription.objects.filter(state="granted").exists(), what="the row"
    )


def test_the_resources_of_a_server_that_comes_back_count_as_changed(
    news: Server, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    assert watch(processes[0], news, PAPER) == {PAPER: 0}
    feed = processes[0]._feeds[UpdateSource(news.pk)]
    get_runtime().loop.call_soon_threadsafe(feed._close_connection)  # like a broken stream
    eventually(lambda: find_change_count(processes[0], news) == 1, what="the change")


def test_an_unavailable_or_disabled_server_grants_no_subscription(
    acme: Organization, helper: Agent, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    with run_news_server() as url:
        server = create_news_server(acme, helper, url)
        Server.objects.filter(pk=server.pk).update(enabled=False)
        assert watch(processes[0], server, PAPER) == {}
        Server.objects.filter(pk=server.pk).update(enabled=True)
    assert watch(processes[0], server, PAPER) == {}
    eventually(lambda: not processes[0]._feeds, what="the end of the feed")


def test_a_reconfigured_server_is_subscribed_again(
    news: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    edition_url: Callable[..., str],
) -> None:
    watch(processes[0], news, PAPER)
    Server.objects.filter(pk=news.pk).update(endpoint_config={"url": edition_url()})
    eventually(lambda: find_change_count(processes[0], news) == 1, what="the new connection")


def test_a_resource_without_subscribers_is_unsubscribed(
    news: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "UNWANTED_AFTER", timedelta())
    watch(processes[0], news, PAPER)
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
    watch(processes[0], news, PAPER)
    get_runtime().call(_unwatch, processes[0], (UpdateSource(news.pk), PAPER))
    assert watch(processes[0], news, PAPER) == {PAPER: 0}


async def _unwatch(watcher: ResourceWatcher, key: resource_updated.Key) -> None:
    watcher.unwatch_resources([key])


def test_a_subscriber_that_leaves_while_waiting_leaves_no_row(
    news: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise LookupError

    monkeypatch.setattr(leases, "add_watched_resources", fail)
    with pytest.raises(LookupError):
        watch(processes[0], news, PAPER)
    assert find_change_count(processes[0], news) is None


def test_only_servers_with_resource_subscriptions_are_subscribed(news: Server) -> None:
    endpoint = build_endpoint(news)
    assert can_watch_resources(endpoint)
    news.discovery = {"capabilities": {"resources": {"listChanged": True}}}
    assert not can_watch_resources(build_endpoint(news))


def test_an_unavailable_database_loses_no_change(
    news: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch(processes[0], news, PAPER)
    original, faults = (
        leases.increment_change_counts,
        iter([resource_updated.UNAVAILABLE_ERRORS[0]("away")]),
    )

    def increment(*args: object) -> None:
        for fault in faults:
            raise fault
        original(*args)

    monkeypatch.setattr(leases, "increment_change_counts", increment)
    deliver_change(processes[0], news)
    eventually(lambda: find_change_count(processes[0], news) == 1, what="the change")


@pytest.fixture
def people(acme: Organization) -> tuple[Principal, Principal]:
    return tuple(factories.create_member(acme, Role.OPERATOR, name) for name in ("ann", "ben"))


@pytest.fixture(params=["modern", "handshake"])
def personal(
    request: pytest.FixtureRequest,
    acme: Organization,
    helper: Agent,
    people: tuple[Principal, Principal],
    edition_url: Callable[..., str],
) -> Server:
    """Return a server of each era with personal sign-ins; both people are signed in."""
    arguments = ["people", *(["handshake"] if request.param == "handshake" else [])]
    return create_news_server(acme, helper, edition_url(*arguments), readers=people)


def test_subscriptions_of_two_people_are_separate_across_processes(
    personal: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    people: tuple[Principal, Principal],
) -> None:
    first, second = processes
    ann, ben = people
    for process, principal in ((first, ann), (second, ben), (second, ann), (first, ben)):
        assert watch(process, personal, PAPER, principal=principal) == {PAPER: 0}
    assert (set(first._feeds), set(second._feeds)) == (
        {build_source(personal, ann)},
        {build_source(personal, ben)},
    )
    deliver_change(first, personal, principal=ann)
    for process in processes:
        eventually(
            lambda p=process: find_change_count(p, personal, principal=ann) == 1, what="the change"
        )
    deliver_change(second, personal, principal=ben)
    deliver_change(second, personal, principal=ben)
    for process in processes:
        eventually(
            lambda p=process: find_change_count(p, personal, principal=ben), what="the change"
        )
        assert find_change_count(process, personal, principal=ann) == 1


@pytest.mark.parametrize("personal", ["modern"], indirect=True)
def test_another_process_continues_with_the_sign_in_of_the_same_person(
    personal: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    people: tuple[Principal, Principal],
) -> None:
    ann, ben = people
    for process, principal in ((processes[0], ann), (processes[1], ann), (processes[1], ben)):
        watch(process, personal, PAPER, principal=principal)
    get_runtime().call(processes[0].stop)
    eventually(
        lambda: find_change_count(processes[1], personal, principal=ann) == 1, what="the take-over"
    )
    assert find_change_count(processes[1], personal, principal=ben) == 0


@pytest.mark.parametrize("personal", ["modern"], indirect=True)
def test_a_person_whose_sign_in_is_refused_gets_no_notifications(
    personal: Server,
    processes: tuple[ResourceWatcher, ResourceWatcher],
    people: tuple[Principal, Principal],
) -> None:
    ann, _ = people
    auth_config = personal.auth_config
    assert watch(processes[0], personal, PAPER, principal=ann) == {PAPER: 0}
    for config in ({**auth_config, "per": "organization"}, auth_config):
        Server.objects.filter(pk=personal.pk).update(auth_config=config)
        server = Server.objects.get(pk=personal.pk)
        shared_source = UpdateSource(personal.pk)
        sources = get_runtime().call(
            get_runtime().run_orm,
            load_source_access,
            {build_source(personal, ann): -1, shared_source: -1},
        )
        assert set(sources) == {
            build_source(server, ann) if config is auth_config else shared_source
        }


def test_a_subscription_that_ends_during_a_delay_ends_immediately(
    acme: Organization, helper: Agent, processes: tuple[ResourceWatcher, ResourceWatcher]
) -> None:
    with run_news_server() as url:
        server = create_news_server(acme, helper, url)
    assert watch(processes[0], server, PAPER) == {}  # the server is gone: it is retried later
    eventually(lambda: not len(processes[0]._tasks), what="the end of all tasks")
