"""Label laundering: stored data keeps the labels of its writer, however it is read.

In each way a caller with both labels writes, and a caller without labels reads; then the reader
needs approval to send. Third-party servers are tested in `test_flow_label_laundering_servers`,
sessions and their readers in `test_session_labels`.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agents.approvals.services import resolve_approval
from agents.builtin_tools.toolset_options import NOTES_TOOLSET
from agents.calls.pipeline import CallOutcome
from agents.flow_labels.services import clear_agent_stores, list_agent_stores
from agents.models import Agent, Approval, StoredResult
from agents.notes import NoteSpec, save_note
from agents.services import AgentSpec, detach_server, update_agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.ledger.models import AuditRow, FlowCell, StoreLabel
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import set_labels
from mcp_servers.flow_labels.store_labels import (
    clear_store_labels,
    get_store_labels,
    list_written_labels,
)
from mcp_servers.models import Server
from tests import factories
from tests.agents.labeled_stores import APPROVAL_REQUIRED, BOTH, Caller, World, create_world

pytestmark = pytest.mark.django_db(transaction=True)

Call = Callable[..., CallOutcome]
Way = Callable[[World], Caller]
WRITE, READ = "mcp_records_create_record", "mcp_records_get_record"


@pytest.fixture
def world(acme: Organization, helper: Agent) -> Iterator[World]:
    with create_world(acme, helper) as new_world:
        yield new_world


def write(world: World, tool: str = WRITE, **more: Any) -> None:
    """Write into the store in a session with both labels."""
    assert world.start_session().read_labeled_data().use(tool, {"text": "x"}, **more) == ""


def read(reader: Caller, tool: str = READ, **options: Any) -> Caller:
    """Read the store as a caller without labels."""
    assert reader.use(tool, **options) == ""
    return reader


def in_another_session(world: World) -> Caller:
    write(world)
    return read(world.start_session())


def by_a_token(world: World) -> Caller:
    write(world)
    return read(world.issue_token())


def from_a_token(world: World) -> Caller:
    writer = world.issue_token().read_labeled_data()
    assert writer.use(WRITE, {"text": "x"}) == ""
    world.clear_caller_labels(writer)
    return read(world.start_session())


def by_another_token_of_the_agent(world: World) -> Caller:
    writer = world.issue_token().read_labeled_data()
    assert writer.use(WRITE, {"text": "x"}) == ""
    world.clear_caller_labels(writer)
    return read(world.issue_token())


def by_another_agent(world: World) -> Caller:
    write(world)
    return read(world.start_session(world.create_agent()))


def by_a_token_of_another_agent(world: World) -> Caller:
    write(world)
    return read(world.issue_token(world.create_agent()))


def without_an_agent(world: World) -> Caller:
    write(world)
    caller, _text = world.issue_organization_token()
    reader = Caller(caller.principal, token=caller.token)
    assert reader.use("get_record", server_id=world.records.pk) == ""
    return Caller(caller.principal, world.helper, token=caller.token)


def written_without_an_agent(world: World) -> Caller:
    caller, _text = world.issue_organization_token()
    writer = Caller(caller.principal, token=caller.token)
    assert writer.use("read_mail", server_id=world.office.pk) == ""
    assert writer.use("create_record", server_id=world.records.pk) == ""
    return read(world.start_session())


def at_a_private_server(world: World) -> Caller:
    world.create_store("own")
    Server.objects.filter(name="own").update(scope_id=world.helper.pk)
    write(world, "mcp_own_create_record")
    return read(world.start_session(), "mcp_own_get_record")


def after_a_new_name(world: World) -> Caller:
    write(world)
    Server.objects.filter(pk=world.records.pk).update(name="Archive", slug="archive")
    detach_server(world.administrator, world.helper, world.records)
    world.records.refresh_from_db()
    world.attach_store(world.records, world.helper)
    return read(world.start_session(), "mcp_records_get_record")


def after_detaching(world: World) -> Caller:
    write(world)
    detach_server(world.administrator, world.helper, world.records)
    world.attach_store(world.records, world.helper)
    return read(world.start_session())


def as_a_resource(world: World) -> Caller:
    write(world)
    options = {"method": "resources/read", "server_id": world.records.pk}
    return read(world.start_session(), "note://all", **options)


def through_a_template(world: World) -> Caller:
    write(world)
    options = {"method": "resources/read", "server_id": world.records.pk}
    return read(world.start_session(), "note://one/x", **options)


def as_a_prompt(world: World) -> Caller:
    write(world)
    options = {"method": "prompts/get", "server_id": world.records.pk}
    return read(world.start_session(), "recall", **options)


def as_a_completion(world: World) -> Caller:
    write(world)
    ref = {"type": "ref/resource", "uri": "note://one/{name}"}
    arguments = {"ref": ref, "argument": {"name": "name", "value": "x"}}
    reader = world.start_session()
    options = {"method": "completion/complete", "server_id": world.records.pk}
    assert reader.use("note://one/{name}", arguments, **options) == ""
    return reader


def by_a_tool_without_labels(world: World) -> Caller:
    rows = [*world.records.definitions.filter(name="get_record")]
    set_labels(world.administrator, world.records, rows, [])
    write(world)
    return read(world.start_session())


def by_a_tool_of_no_known_verb(world: World) -> Caller:
    rows = [*world.records.definitions.filter(name="frobnicate")]
    set_labels(world.administrator, world.records, rows, [])
    write(world, "mcp_records_frobnicate")
    return read(world.start_session(), "mcp_records_frobnicate")


def by_a_verb_that_is_a_guess(world: World) -> Caller:
    write(world, "mcp_records_index")
    return read(world.start_session())


def past_the_servers_own_hint(world: World) -> Caller:
    write(world, "mcp_records_save_record")
    return read(world.start_session())


def by_a_reader_that_says_it_writes(world: World) -> Caller:
    write(world, "mcp_records_fetch_record")
    return read(world.start_session())


def by_a_chosen_action(world: World) -> Caller:
    writer = world.start_session().read_labeled_data()
    assert writer.use("mcp_records_manage_records", {"action": "create"}) == ""
    return read(world.start_session())


def by_a_statement(world: World) -> Caller:
    writer = world.start_session().read_labeled_data()
    assert writer.use("mcp_records_query_records", {"sql": "insert"}) == ""
    return read(world.start_session())


def in_the_answer_of_an_edit(world: World) -> Caller:
    write(world)
    return read(world.start_session(), "mcp_records_edit_record")


def in_an_answer_to_the_server(world: World) -> Caller:
    answers = {"inputResponses": {"q": {"action": "accept", "content": {"text": "x"}}}}
    assert world.start_session().read_labeled_data().use(READ, extra_params=answers) == ""
    return read(world.start_session())


def through_a_second_store(world: World) -> Caller:
    world.create_store("copies")
    write(world)
    carrier = read(world.start_session())
    assert carrier.use("mcp_copies_create_record", {"text": "x"}) == ""
    return read(world.start_session(), "mcp_copies_get_record")


def in_two_halves(world: World) -> Caller:
    for source in ("mcp_office_read_payroll", "mcp_office_search_web"):
        writer = read(world.start_session(), source)
        assert writer.use(WRITE, {"text": "x"}) == ""
    return read(world.start_session())


def in_a_child_of_the_session(world: World) -> Caller:
    child = world.start_child(world.start_session().read_labeled_data())
    assert child.use(WRITE, {"text": "x"}) == ""
    return read(world.start_session())


def read_by_a_child(world: World) -> Caller:
    write(world)
    parent = world.start_session()
    read(world.start_child(parent))
    return parent


def posted_with_approval(world: World) -> Caller:
    rows = [*world.records.definitions.filter(name="create_record")]
    set_labels(world.administrator, world.records, rows, [FlowLabel.SENDS_OUT])
    writer = world.start_session().read_labeled_data()
    assert writer.use(WRITE, {"text": "x"}) == APPROVAL_REQUIRED
    resolve_approval(
        factories.create_member(world.acme, Role.REVIEWER), Approval.objects.get(), "approve"
    )
    assert writer.use(WRITE, {"text": "x"}) == ""
    return read(world.start_session())


def after_a_day(world: World) -> Caller:
    write(world)
    a_month_ago = int((timezone.now() - timedelta(days=30)).timestamp() * 1_000_000)
    FlowCell.objects.update(touched=a_month_ago)
    return read(world.start_session())


WAYS: tuple[Way, ...] = (
    *(in_another_session, by_a_token, from_a_token, by_another_token_of_the_agent),
    *(by_another_agent, by_a_token_of_another_agent, without_an_agent, written_without_an_agent),
    *(at_a_private_server, after_a_new_name, after_detaching, as_a_resource, through_a_template),
    *(as_a_prompt, as_a_completion, by_a_tool_without_labels, by_a_tool_of_no_known_verb),
    *(by_a_verb_that_is_a_guess, past_the_servers_own_hint, by_a_reader_that_says_it_writes),
    *(by_a_chosen_action, by_a_statement, in_the_answer_of_an_edit, in_an_answer_to_the_server),
    *(through_a_second_store, in_two_halves, in_a_child_of_the_session, read_by_a_child),
    *(posted_with_approval, after_a_day),
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_data_written_under_labels_requires_approval_before_it_is_sent(
    world: World, way: Way
) -> None:
    assert way(world).try_to_send() == APPROVAL_REQUIRED


def from_a_clean_session(world: World) -> Caller:
    assert world.start_session().use(WRITE, {"text": "x"}) == ""
    return read(world.start_session())


def from_private_data_alone(world: World) -> Caller:
    writer = read(world.start_session(), "mcp_office_read_payroll")
    assert writer.use(WRITE, {"text": "x"}) == ""
    return read(world.start_session())


def by_reading_under_labels(world: World) -> Caller:
    assert world.start_session().read_labeled_data().use(READ) == ""
    return read(world.start_session())


def by_listing_under_labels(world: World) -> Caller:
    assert world.start_session().read_labeled_data().use("mcp_records_list_records") == ""
    return read(world.start_session())


def by_reading_a_resource_under_labels(world: World) -> Caller:
    options = {"method": "resources/read", "server_id": world.records.pk}
    assert world.start_session().read_labeled_data().use("note://all", **options) == ""
    return read(world.start_session())


def by_calculating(world: World) -> Caller:
    tool = "mcp_records_calculate_sum"
    assert world.start_session().read_labeled_data().use(tool, {"expression": "1+1"}) == ""
    return read(world.start_session())


def by_writing_to_a_labeled_store(world: World) -> Caller:
    write(world)
    clean = world.start_session()
    assert clean.use(WRITE, {"text": "x"}) == ""
    return clean


def by_the_web_beside_a_store(world: World) -> Caller:
    write(world)
    return read(world.start_session(), "mcp_records_search_web")


def at_another_server(world: World) -> Caller:
    world.create_store("others")
    write(world)
    return read(world.start_session(), "mcp_others_get_record")


def by_a_denied_call(world: World) -> Caller:
    rows = [*world.records.definitions.filter(name="create_record")]
    set_labels(world.administrator, world.records, rows, [FlowLabel.SENDS_OUT])
    assert world.start_session().read_labeled_data().use(WRITE, {"text": "x"}) == APPROVAL_REQUIRED
    return read(world.start_session())


def by_a_person_without_an_agent(world: World) -> Caller:
    person = Caller(world.administrator)
    assert person.use("read_mail", server_id=world.office.pk) == ""
    assert person.use("create_record", server_id=world.records.pk) == ""
    return read(world.start_session())


def after_clearing(world: World) -> Caller:
    write(world)
    clear_store_labels(factories.create_member(world.acme, Role.REVIEWER), world.records)
    return read(world.start_session())


CLEAN: tuple[Way, ...] = (
    *(from_a_clean_session, from_private_data_alone, by_reading_under_labels),
    *(by_listing_under_labels, by_reading_a_resource_under_labels, by_calculating),
    *(by_writing_to_a_labeled_store, by_the_web_beside_a_store, at_another_server),
    *(by_a_denied_call, by_a_person_without_an_agent, after_clearing),
)


@pytest.mark.parametrize("way", CLEAN, ids=lambda way: way.__name__)
def test_data_written_without_labels_needs_no_approval(world: World, way: Way) -> None:
    assert way(world).try_to_send() == ""


def test_a_store_shows_which_call_set_its_labels_and_who_cleared_them(world: World) -> None:
    write(world)
    write(world)
    assert get_store_labels(world.records) == BOTH
    (entry,) = list_written_labels(world.records)
    row = AuditRow.objects.get(pk=entry.call_id)
    assert (entry.labels, entry.tool, row.tool_name) == (BOTH, "create_record", "create_record")
    assert (entry.session_id, entry.cleared_at) == (row.session_id, None)
    reviewer = factories.create_member(world.acme, Role.REVIEWER)
    assert clear_store_labels(reviewer, world.records) == BOTH
    assert get_store_labels(world.records) == ()
    (entry,) = list_written_labels(world.records)
    assert entry.cleared_by == reviewer.label
    cleared = AuditRow.objects.get(action="store_labels_cleared")
    assert (cleared.resource_id, cleared.actor_id) == (str(world.records.pk), reviewer.id)
    # Data written later under labels is labeled again.
    write(world)
    assert get_store_labels(world.records) == BOTH
    assert StoreLabel.objects.filter(cleared=None).count() == 1


def test_only_roles_that_label_definitions_can_clear_stores(world: World) -> None:
    write(world)
    for role in (Role.OPERATOR, Role.MEMBER, Role.AUDITOR):
        person = factories.create_member(world.acme, role)
        with pytest.raises(Problem) as caught:
            clear_store_labels(person, world.records)
        assert caught.value.code == "forbidden"
        with pytest.raises(Problem) as caught:
            clear_agent_stores(person, world.helper)
        assert caught.value.code == "forbidden"
    assert get_store_labels(world.records) == BOTH


@pytest.fixture
def agent_with_stores(world: World) -> Agent:
    """The agent with notes and a workspace."""
    toolsets = {NOTES_TOOLSET: {}, "filesystem": {"read_only": False}}
    return update_agent(
        world.administrator, world.helper, AgentSpec(name=world.helper.name, builtin_tools=toolsets)
    )


FILE, NOTE = {"path": "a", "text": "x"}, {"title": "a", "text": "x"}


@pytest.mark.parametrize(
    ("writes", "reads"),
    [
        (("write_file", FILE), ("read_file", {"path": "a"})),
        (("remember", NOTE), ("search_notes", {"query": "a"})),
    ],
    ids=["workspace", "notes"],
)
@pytest.mark.parametrize("writer", ["session", "child", "token"])
def test_the_stores_of_an_agent_keep_labels(
    world: World,
    agent_with_stores: Agent,
    call: Call,
    writes: tuple[str, dict[str, str]],
    reads: tuple[str, dict[str, str]],
    writer: str,
) -> None:
    caller = {"session": world.start_session, "token": world.issue_token}.get(
        writer, world.start_session
    )()
    caller = (world.start_child(caller) if writer == "child" else caller).read_labeled_data()
    call_fields = {
        "principal": caller.principal,
        "session_id": caller.session and caller.session.pk,
    }
    assert call(*writes, root=caller.root, **call_fields).outcome == "ok"
    world.clear_caller_labels(caller)
    reader = world.start_session()
    assert reader.session is not None
    assert call(*reads, session_id=reader.session.pk).outcome == "ok"
    assert reader.try_to_send() == APPROVAL_REQUIRED
    assert BOTH in [store.labels for store in list_agent_stores(agent_with_stores)]
    clear_agent_stores(factories.create_member(world.acme, Role.REVIEWER), agent_with_stores)
    assert [store.labels for store in list_agent_stores(agent_with_stores)] == [(), (), ()]
    later_reader = world.start_session()
    assert later_reader.session is not None
    call(*reads, session_id=later_reader.session.pk)
    assert later_reader.try_to_send() == ""


def test_a_note_written_by_a_token_keeps_the_tokens_labels(
    world: World, agent_with_stores: Agent, call: Call
) -> None:
    token, _text = world.issue_organization_token()
    token.read_labeled_data()
    save_note(token.principal, agent_with_stores, NoteSpec("a", "x"))
    world.clear_caller_labels(token)
    reader = world.start_session()
    assert reader.session is not None
    call("search_notes", {"query": "a"}, session_id=reader.session.pk)
    assert reader.try_to_send() == APPROVAL_REQUIRED


def test_a_stored_result_keeps_its_labels_after_its_caller_lost_them(
    world: World, call: Call
) -> None:
    token = world.issue_token().read_labeled_data()
    row = AuditRow.objects.get(tool_name="read_mail")
    StoredResult.objects.create(
        pk=row.pk, organization_id=world.acme.pk, agent=world.helper, text="long"
    )
    world.clear_caller_labels(token)
    assert token.try_to_send() == ""
    result = call("read_result", {"result_id": str(row.pk)}, principal=token.principal)
    assert result.text.startswith("long")
    assert token.try_to_send() == APPROVAL_REQUIRED
