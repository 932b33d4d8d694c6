"""Laundering: labels come back with what was written under them, whatever way it is read.

Each way writes under both labels and reads as a caller that has seen nothing of them itself; that
caller is then asked about before it sends. The servers that nobody wrote here are in
`test_flow_label_laundering_servers`, sessions and their readers in `test_session_labels`.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agents.approvals.services import resolve_approval
from agents.builtin_tools.toolset_options import NOTES_TOOLSET
from agents.calls.pipeline import CallOutcome
from agents.flow_labels.store_labels import clear_agent_stores, list_agent_stores
from agents.models import Agent, Approval, StoredResult
from agents.notes import NoteSpec, save_note
from agents.services import AgentSpec, detach_server, update_agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.ledger.models import AuditRow, FlowCell, StoreLabel
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.services import set_labels
from mcp_servers.flow_labels.store_labels import (
    clear_store_labels,
    get_store_labels,
    list_written_labels,
)
from mcp_servers.models import Server
from tests import factories
from tests.agents.labeled_stores import ASKED, BOTH, Caller, World, world_of

pytestmark = pytest.mark.django_db(transaction=True)

Call = Callable[..., CallOutcome]
Way = Callable[[World], Caller]
WRITE, READ = "mcp_records_create_record", "mcp_records_get_record"


@pytest.fixture
def world(acme: Organization, helper: Agent) -> Iterator[World]:
    with world_of(acme, helper) as one:
        yield one


def write(world: World, tool: str = WRITE, **more: Any) -> None:
    """Write into the store as a session that holds both labels."""
    assert world.session().under_labels().use(tool, {"text": "x"}, **more) == ""


def read(reader: Caller, tool: str = READ, **how: Any) -> Caller:
    """Read the store as somebody who has seen nothing yet."""
    assert reader.use(tool, **how) == ""
    return reader


def in_another_session(world: World) -> Caller:
    write(world)
    return read(world.session())


def by_a_token(world: World) -> Caller:
    write(world)
    return read(world.token())


def from_a_token(world: World) -> Caller:
    writer = world.token().under_labels()
    assert writer.use(WRITE, {"text": "x"}) == ""
    world.forget_callers(writer)
    return read(world.session())


def by_another_token_of_the_agent(world: World) -> Caller:
    writer = world.token().under_labels()
    assert writer.use(WRITE, {"text": "x"}) == ""
    world.forget_callers(writer)
    return read(world.token())


def by_another_agent(world: World) -> Caller:
    write(world)
    return read(world.session(world.colleague()))


def by_a_token_of_another_agent(world: World) -> Caller:
    write(world)
    return read(world.token(world.colleague()))


def without_an_agent(world: World) -> Caller:
    write(world)
    caller, _text = world.bearer()
    reader = Caller(caller.principal, token=caller.token)
    assert reader.use("get_record", server_id=world.records.pk) == ""
    return Caller(caller.principal, world.helper, token=caller.token)


def written_without_an_agent(world: World) -> Caller:
    caller, _text = world.bearer()
    writer = Caller(caller.principal, token=caller.token)
    assert writer.use("read_mail", server_id=world.office.pk) == ""
    assert writer.use("create_record", server_id=world.records.pk) == ""
    return read(world.session())


def at_a_private_server(world: World) -> Caller:
    world.store("own")
    Server.objects.filter(name="own").update(scope_id=world.helper.pk)
    write(world, "mcp_own_create_record")
    return read(world.session(), "mcp_own_get_record")


def after_a_new_name(world: World) -> Caller:
    write(world)
    Server.objects.filter(pk=world.records.pk).update(name="Archive", slug="archive")
    detach_server(world.boss, world.helper, world.records)
    world.records.refresh_from_db()
    world.give(world.records, world.helper)
    return read(world.session(), "mcp_records_get_record")


def after_detaching(world: World) -> Caller:
    write(world)
    detach_server(world.boss, world.helper, world.records)
    world.give(world.records, world.helper)
    return read(world.session())


def as_a_resource(world: World) -> Caller:
    write(world)
    how = {"method": "resources/read", "server_id": world.records.pk}
    return read(world.session(), "note://all", **how)


def through_a_template(world: World) -> Caller:
    write(world)
    how = {"method": "resources/read", "server_id": world.records.pk}
    return read(world.session(), "note://one/x", **how)


def as_a_prompt(world: World) -> Caller:
    write(world)
    how = {"method": "prompts/get", "server_id": world.records.pk}
    return read(world.session(), "recall", **how)


def as_a_completion(world: World) -> Caller:
    write(world)
    ref = {"type": "ref/resource", "uri": "note://one/{name}"}
    arguments = {"ref": ref, "argument": {"name": "name", "value": "x"}}
    reader = world.session()
    how = {"method": "completion/complete", "server_id": world.records.pk}
    assert reader.use("note://one/{name}", arguments, **how) == ""
    return reader


def by_a_tool_without_labels(world: World) -> Caller:
    rows = [*world.records.definitions.filter(name="get_record")]
    set_labels(world.boss, world.records, rows, [])
    write(world)
    return read(world.session())


def by_a_tool_of_no_known_verb(world: World) -> Caller:
    rows = [*world.records.definitions.filter(name="frobnicate")]
    set_labels(world.boss, world.records, rows, [])
    write(world, "mcp_records_frobnicate")
    return read(world.session(), "mcp_records_frobnicate")


def by_a_verb_that_is_a_guess(world: World) -> Caller:
    write(world, "mcp_records_index")
    return read(world.session())


def past_the_servers_own_hint(world: World) -> Caller:
    write(world, "mcp_records_save_record")
    return read(world.session())


def by_a_reader_that_says_it_writes(world: World) -> Caller:
    write(world, "mcp_records_fetch_record")
    return read(world.session())


def by_a_chosen_action(world: World) -> Caller:
    writer = world.session().under_labels()
    assert writer.use("mcp_records_manage_records", {"action": "create"}) == ""
    return read(world.session())


def by_a_statement(world: World) -> Caller:
    writer = world.session().under_labels()
    assert writer.use("mcp_records_query_records", {"sql": "insert"}) == ""
    return read(world.session())


def in_the_answer_of_an_edit(world: World) -> Caller:
    write(world)
    return read(world.session(), "mcp_records_edit_record")


def in_an_answer_to_the_server(world: World) -> Caller:
    answers = {"inputResponses": {"q": {"action": "accept", "content": {"text": "x"}}}}
    assert world.session().under_labels().use(READ, more=answers) == ""
    return read(world.session())


def through_a_second_store(world: World) -> Caller:
    world.store("copies")
    write(world)
    carrier = read(world.session())
    assert carrier.use("mcp_copies_create_record", {"text": "x"}) == ""
    return read(world.session(), "mcp_copies_get_record")


def in_two_halves(world: World) -> Caller:
    for source in ("mcp_office_read_payroll", "mcp_office_search_web"):
        writer = read(world.session(), source)
        assert writer.use(WRITE, {"text": "x"}) == ""
    return read(world.session())


def in_a_child_of_the_session(world: World) -> Caller:
    child = world.child(world.session().under_labels())
    assert child.use(WRITE, {"text": "x"}) == ""
    return read(world.session())


def read_by_a_child(world: World) -> Caller:
    write(world)
    parent = world.session()
    read(world.child(parent))
    return parent


def posted_with_approval(world: World) -> Caller:
    rows = [*world.records.definitions.filter(name="create_record")]
    set_labels(world.boss, world.records, rows, [FlowLabel.SENDS_OUT])
    writer = world.session().under_labels()
    assert writer.use(WRITE, {"text": "x"}) == ASKED
    resolve_approval(
        factories.create_member(world.acme, Role.REVIEWER), Approval.objects.get(), "approve"
    )
    assert writer.use(WRITE, {"text": "x"}) == ""
    return read(world.session())


def after_a_day(world: World) -> Caller:
    write(world)
    long_ago = int((timezone.now() - timedelta(days=30)).timestamp() * 1_000_000)
    FlowCell.objects.update(touched=long_ago)
    return read(world.session())


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
    assert way(world).sends() == ASKED


def from_a_clean_session(world: World) -> Caller:
    assert world.session().use(WRITE, {"text": "x"}) == ""
    return read(world.session())


def from_private_data_alone(world: World) -> Caller:
    writer = read(world.session(), "mcp_office_read_payroll")
    assert writer.use(WRITE, {"text": "x"}) == ""
    return read(world.session())


def by_reading_under_labels(world: World) -> Caller:
    assert world.session().under_labels().use(READ) == ""
    return read(world.session())


def by_listing_under_labels(world: World) -> Caller:
    assert world.session().under_labels().use("mcp_records_list_records") == ""
    return read(world.session())


def by_reading_a_resource_under_labels(world: World) -> Caller:
    how = {"method": "resources/read", "server_id": world.records.pk}
    assert world.session().under_labels().use("note://all", **how) == ""
    return read(world.session())


def by_calculating(world: World) -> Caller:
    tool = "mcp_records_calculate_sum"
    assert world.session().under_labels().use(tool, {"expression": "1+1"}) == ""
    return read(world.session())


def by_adding_to_what_is_labelled(world: World) -> Caller:
    write(world)
    clean = world.session()
    assert clean.use(WRITE, {"text": "x"}) == ""
    return clean


def by_the_web_beside_a_store(world: World) -> Caller:
    write(world)
    return read(world.session(), "mcp_records_search_web")


def at_another_server(world: World) -> Caller:
    world.store("others")
    write(world)
    return read(world.session(), "mcp_others_get_record")


def by_a_call_that_was_not_let_through(world: World) -> Caller:
    rows = [*world.records.definitions.filter(name="create_record")]
    set_labels(world.boss, world.records, rows, [FlowLabel.SENDS_OUT])
    assert world.session().under_labels().use(WRITE, {"text": "x"}) == ASKED
    return read(world.session())


def by_a_person_without_an_agent(world: World) -> Caller:
    person = Caller(world.boss)
    assert person.use("read_mail", server_id=world.office.pk) == ""
    assert person.use("create_record", server_id=world.records.pk) == ""
    return read(world.session())


def after_clearing(world: World) -> Caller:
    write(world)
    clear_store_labels(factories.create_member(world.acme, Role.REVIEWER), world.records)
    return read(world.session())


CLEAN: tuple[Way, ...] = (
    *(from_a_clean_session, from_private_data_alone, by_reading_under_labels),
    *(by_listing_under_labels, by_reading_a_resource_under_labels, by_calculating),
    *(by_adding_to_what_is_labelled, by_the_web_beside_a_store, at_another_server),
    *(by_a_call_that_was_not_let_through, by_a_person_without_an_agent, after_clearing),
)


@pytest.mark.parametrize("way", CLEAN, ids=lambda way: way.__name__)
def test_data_written_without_labels_needs_no_approval(world: World, way: Way) -> None:
    assert way(world).sends() == ""


def test_a_store_shows_which_call_set_its_labels_and_who_cleared_them(world: World) -> None:
    write(world)
    write(world)
    assert get_store_labels(world.records) == BOTH
    (one,) = list_written_labels(world.records)
    row = AuditRow.objects.get(pk=one.call_id)
    assert (one.labels, one.tool, row.tool_name) == (BOTH, "create_record", "create_record")
    assert (one.session_id, one.cleared_at) == (row.session_id, None)
    reviewer = factories.create_member(world.acme, Role.REVIEWER)
    assert clear_store_labels(reviewer, world.records) == BOTH
    assert get_store_labels(world.records) == ()
    (one,) = list_written_labels(world.records)
    assert one.cleared_by == reviewer.label
    cleared = AuditRow.objects.get(action="store_labels_cleared")
    assert (cleared.resource_id, cleared.actor_id) == (str(world.records.pk), reviewer.id)
    # What is written under labels later is labelled again.
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
def keeper(world: World) -> Agent:
    """The agent with its notes and a workspace."""
    kits = {NOTES_TOOLSET: {}, "filesystem": {"read_only": False}}
    return update_agent(
        world.boss, world.helper, AgentSpec(name=world.helper.name, builtin_tools=kits)
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
    keeper: Agent,
    call: Call,
    writes: tuple[str, dict[str, str]],
    reads: tuple[str, dict[str, str]],
    writer: str,
) -> None:
    who = {"session": world.session, "token": world.token}.get(writer, world.session)()
    who = (world.child(who) if writer == "child" else who).under_labels()
    by = {"principal": who.principal, "session_id": who.session and who.session.pk}
    assert call(*writes, root=who.root, **by).outcome == "ok"
    world.forget_callers(who)
    clean = world.session()
    assert clean.session is not None
    assert call(*reads, session_id=clean.session.pk).outcome == "ok"
    assert clean.sends() == ASKED
    assert BOTH in [one.labels for one in list_agent_stores(keeper)]
    clear_agent_stores(factories.create_member(world.acme, Role.REVIEWER), keeper)
    assert [one.labels for one in list_agent_stores(keeper)] == [(), ()]
    later = world.session()
    assert later.session is not None
    call(*reads, session_id=later.session.pk)
    assert later.sends() == ""


def test_a_note_written_by_a_token_keeps_the_tokens_labels(
    world: World, keeper: Agent, call: Call
) -> None:
    token, _text = world.bearer()
    token.under_labels()
    save_note(token.principal, keeper, NoteSpec("a", "x"))
    world.forget_callers(token)
    clean = world.session()
    assert clean.session is not None
    call("search_notes", {"query": "a"}, session_id=clean.session.pk)
    assert clean.sends() == ASKED


def test_a_stored_result_keeps_its_labels_after_its_caller_lost_them(
    world: World, call: Call
) -> None:
    token = world.token().under_labels()
    row = AuditRow.objects.get(tool_name="read_mail")
    StoredResult.objects.create(
        pk=row.pk, organization_id=world.acme.pk, agent=world.helper, text="long"
    )
    world.forget_callers(token)
    assert token.sends() == ""
    found = call("read_result", {"result_id": str(row.pk)}, principal=token.principal)
    assert found.text.startswith("long")
    assert token.sends() == ASKED
