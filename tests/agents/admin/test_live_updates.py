"""Live updates of open admin pages: topics, versions, and the stream."""

import json
import re
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync
from django.http import StreamingHttpResponse
from django.test import AsyncClient

from agents.access_requests import (
    AccessRequestSpec,
    answer_access_request,
    create_access_request,
)
from agents.admin import live_updates
from agents.approvals.services import create_approval, resolve_approval
from agents.models import Agent, Approval
from agents.policies.services import PolicySpec, set_policy
from agents.sessions.services import start_session
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.admin_changes import record_finished_change
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.services import set_server_enabled
from tests import admin_client, factories


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.mark.django_db
def test_a_version_changes_only_when_its_rows_change(acme: Organization, helper: Agent) -> None:
    names = live_updates.TOPICS.keys()
    before = live_updates.read_versions(acme.pk, names)
    assert live_updates.read_versions(acme.pk, names) == before
    approval = factories.create_approval(helper)
    asked = live_updates.read_versions(acme.pk, names)
    assert {name for name in names if asked[name] != before[name]} == {
        *("approvals", "counts", "dashboard"),
    }
    resolve_approval(factories.build_administrator(acme), approval, "deny")
    answered = live_updates.read_versions(acme.pk, names)
    assert answered["approvals"] == before["approvals"]
    assert answered["audit"] != before["audit"]


@pytest.mark.django_db
def test_a_new_agent_and_a_new_member_change_the_list_of_agents(
    acme: Organization, helper: Agent
) -> None:
    versions = [live_updates.read_versions(acme.pk, ["agents"])]
    factories.create_agent(acme, "other")
    versions.append(live_updates.read_versions(acme.pk, ["agents"]))
    membership = factories.create_member(acme, Role.MEMBER)
    helper.members.add(membership.id)
    versions.append(live_updates.read_versions(acme.pk, ["agents"]))
    factories.create_agent(factories.create_organization("else"))
    assert live_updates.read_versions(acme.pk, ["agents"]) == versions[-1]
    assert len({version["agents"] for version in versions}) == 3


@pytest.mark.django_db
def test_rules_definitions_and_servers_change_the_tools_of_an_agent(
    acme: Organization, helper: Agent
) -> None:
    administrator, server = (
        factories.build_administrator(acme),
        admin_client.create_web_server(acme),
    )
    definition = admin_client.declare_tool(server)
    versions = [live_updates.read_versions(acme.pk, ["policies"])["policies"]]
    for change in (
        lambda: factories.attach_server(administrator, helper, server),
        lambda: set_policy(administrator, helper, PolicySpec("allowlist")),
        lambda: approve_definitions(administrator, server),
        lambda: set_server_enabled(administrator, server, enabled=False),
    ):
        change()
        versions.append(live_updates.read_versions(acme.pk, ["policies"])["policies"])
    assert len(set(versions)) == 5
    owner = admin_client.sign_in(acme, Role.OWNER)
    version = live_updates.read_versions(acme.pk, ["policies"])["policies"]
    page = owner.get("agents_agent_servers", helper.pk)
    assert f'data-generation="{version}"' in page
    assert definition.name in page


@pytest.mark.django_db
def test_each_part_of_the_dashboard_is_loaded_again_when_an_entry_is_added(
    acme: Organization,
) -> None:
    before = live_updates.read_versions(acme.pk, ["dashboard"])
    admin_client.create_web_server(acme)
    record_finished_change(
        organization_id=acme.pk,
        actor=factories.build_administrator(acme).actor,
        action="server_created",
        resource_type="mcp_server",
        resource_id="web",
        resource_name="web",
    )
    assert live_updates.read_versions(acme.pk, ["dashboard"]) != before
    page = admin_client.sign_in(acme, Role.OWNER).get("index")
    parts = re.findall(r'<div [^>]*id="([^"]+)"[^>]* data-topic="dashboard"\s+data-refreshes', page)
    assert parts == [
        *("dashboard-summary", "dashboard-calls", "dashboard-activity", "dashboard-sessions"),
    ]


@pytest.mark.django_db
def test_the_answer_to_an_access_request_changes_its_list(
    acme: Organization, helper: Agent
) -> None:
    requester = factories.create_member(acme, Role.MEMBER)
    spec = AccessRequestSpec(kind="agent", target=helper.name, reason="I plan meetings.")
    access_request = create_access_request(requester, spec)
    names = live_updates.TOPICS.keys()
    asked = live_updates.read_versions(acme.pk, names)
    answer_access_request(factories.build_administrator(acme), access_request, "deny", "Not now.")
    answered = live_updates.read_versions(acme.pk, names)
    assert {name for name in names if asked[name] != answered[name]} == {
        *("access_requests", "audit", "counts", "dashboard"),
    }


@pytest.mark.django_db
def test_a_page_follows_only_what_its_user_may_view(acme: Organization) -> None:
    member = factories.create_member(acme, Role.MEMBER)
    auditor = factories.create_member(acme, Role.AUDITOR)
    names = ("approvals", "audit", "counts", "unknown")
    assert live_updates.select_topics(member, names) == {"approvals", "counts"}
    assert live_updates.select_topics(auditor, names) == {"approvals", "audit", "counts"}


@pytest.mark.django_db
def test_a_page_without_topics_has_no_stream(acme: Organization) -> None:
    client = admin_client.sign_in(acme, Role.AUDITOR).client
    url = admin_client.build_url("live")
    assert client.get(url).status_code == 204
    assert client.get(f"{url}?topic=counts").status_code == 204  # WSGI can't stream
    async_client = AsyncClient()
    async_client.cookies = client.cookies
    response = async_to_sync(async_client.get)(f"{url}?topic=counts")
    assert isinstance(response, StreamingHttpResponse)
    assert response["Content-Type"] == "text/event-stream"
    assert "no-store" in response["Cache-Control"]
    response.close()


@pytest.mark.django_db(transaction=True)
def test_a_new_approval_is_sent_to_open_pages(acme: Organization, helper: Agent) -> None:
    async def read_event(stream: AsyncIterator[bytes]) -> str:
        return (await anext(stream)).decode()

    async def follow() -> list[str]:
        stream = live_updates.stream_changes(principal, frozenset({"approvals"}))
        first = await read_event(stream)
        await get_runtime().run_orm(create_approval, approval)
        second = await read_event(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        return [first, second]

    approval, principal = build_approval(helper), factories.build_administrator(acme)
    events = get_runtime().call(follow)
    assert all(event.startswith("event: approvals\ndata: ") for event in events)
    assert events[0] != events[1]


@pytest.mark.django_db(transaction=True)
def test_each_person_gets_the_counts_of_what_they_can_answer(
    acme: Organization, helper: Agent
) -> None:
    member, owner = (factories.create_member(acme, role) for role in (Role.MEMBER, Role.OWNER))
    helper.members.add(member.id)
    session = start_session(member, helper, "hello")
    factories.create_elicitation(session, admin_client.create_web_server(acme))
    factories.create_approval(helper)

    async def read_counts(principal: Principal) -> dict[str, int]:
        stream = live_updates.stream_changes(principal, frozenset({"counts"}))
        event = (await anext(stream)).decode()
        await stream.aclose()  # type: ignore[attr-defined]
        counts: dict[str, int] = json.loads(event.partition("data: ")[2])
        return counts

    own, others = (get_runtime().call(read_counts, person) for person in (member, owner))
    assert (own["questions"], own["calls"], own["inbox"]) == (1, 0, 1)
    assert (others["questions"], others["calls"], others["inbox"]) == (0, 1, 1)


def build_approval(agent: Agent) -> Approval:
    return Approval(
        organization=agent.organization,
        agent=agent,
        call_id=uuid4(),
        own_name="add",
        label="web_add",
        arguments_digest="a" * 64,
        rules_digest="b" * 64,
        digest="c" * 64,
        rule="policy:ask",
        code="approval_required",
        reason="The policy asks.",
        requested_by_kind="user",
        requested_by_id="1",
        requested_by="Ann",
    )


@pytest.mark.django_db(transaction=True)
def test_an_audit_entry_is_sent_within_a_second_without_reading_other_topics_as_often(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert live_updates.TOPICS["audit"].poll_s <= 1
    reads: list[UUID] = []

    def read_servers(organization_id: UUID) -> str:
        reads.append(organization_id)
        return "same"

    topics = {
        "audit": live_updates.TOPICS["audit"],
        "servers": live_updates.LiveTopic(read_servers, poll_s=1_000),
    }
    monkeypatch.setattr(live_updates, "TOPICS", topics)
    principal = factories.build_administrator(acme)

    async def follow() -> list[str]:
        stream = live_updates.stream_changes(principal, frozenset(topics))
        events = [(await anext(stream)).decode()]
        for name in ("first", "second"):
            await get_runtime().run_orm(create_server, acme, name)
            events.append((await anext(stream)).decode())
        await stream.aclose()  # type: ignore[attr-defined]
        return events

    def create_server(organization: Organization, name: str) -> None:
        record_finished_change(
            organization_id=organization.pk,
            actor=principal.actor,
            action="server_created",
            resource_type="mcp_server",
            resource_id=name,
            resource_name=name,
        )

    first, *changes = get_runtime().call(follow)
    assert "event: servers" in first
    assert all(event.startswith("event: audit\n") for event in changes)
    assert len(set(changes)) == 2
    # Opening the page may wake the task once more.
    assert len(reads) <= 2
