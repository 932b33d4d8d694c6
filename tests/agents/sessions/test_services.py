"""Starting, messaging and canceling sessions, and the permissions for it."""

import pytest

from agents.models import Inbox, Session, ToolName
from agents.sessions import leases, step_store
from agents.sessions import services as sessions
from agents.sessions.loop import close_session
from bonobot.accounts.roles import Role
from bonobot.core.problems import Conflict, Forbidden, InvalidInput, NotFound
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def helper(acme):
    return factories.create_agent(acme)


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


def test_starting_a_session_stores_its_message_and_records_it(administrator, helper):
    session = sessions.start_session(administrator, helper, "  What time\nis it?  ")
    assert (session.status, session.title) == (Session.Status.QUEUED, "What time is it?")
    assert session.inbox.get().payload == {"text": "  What time\nis it?  "}
    assert AuditRow.objects.get(action="session_started").resource_id == str(session.pk)


def test_a_long_message_is_cut_to_a_title_that_ends_with_an_ellipsis(administrator, helper):
    session = sessions.start_session(administrator, helper, "word " * 40)
    assert session.title == f"{' '.join(['word'] * 16)[:79].rstrip()}…"
    exact = sessions.start_session(administrator, helper, "x" * 80)
    assert exact.title == "x" * 80


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ('/create_refund {"order": "475",\n "note": "x"}', "create_refund (order 475, note x)"),
        ('/create_refund {"order": …}', "create_refund"),
        ("/now", "now"),
        ("/etc/hosts is missing", "/etc/hosts is missing"),
        ("/add one and two", "/add one and two"),
    ],
)
def test_the_title_of_a_command_is_its_tool(administrator, helper, text, title):
    assert sessions.start_session(administrator, helper, text).title == title


def test_the_title_of_a_command_names_the_server_of_its_tool(administrator, helper, acme):
    server = admin_client.create_web_server(acme, "Order desk")
    ToolName.objects.create(
        organization=acme, agent=helper, server=server, own_name="refund", name="mcp_desk_refund"
    )
    session = sessions.start_session(administrator, helper, '/mcp_desk_refund {"order": "475"}')
    assert session.title == str(session) == "Order desk: refund (order 475)"


def test_the_titles_of_two_commands_differ_by_the_arguments_of_the_first_one(administrator, helper):
    titles = {
        sessions.start_session(
            administrator, helper, f'/refund {{"order": "{n}"}}\n/refund {{"order": "0"}}'
        ).title
        for n in (475, 476)
    }
    assert titles == {"refund (order 475)", "refund (order 476)"}


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ('/create_refund {"order": "475"}', "create_refund"),
        ('/create_refund {"order": "475", "note": "customer…', "create_refund"),
        ("/etc/hosts is missing", "/etc/hosts is missing"),
        ("", None),
    ],
)
def test_a_command_that_was_stored_as_a_title_is_shown_as_its_tool(title, shown):
    session = Session(title=title)
    assert str(session) == (shown or str(session.pk))


@pytest.mark.parametrize("text", ["", "  \n ", "x" * 100_001])
def test_an_empty_or_too_long_message_is_refused_and_nothing_is_written(
    administrator, helper, text
):
    with pytest.raises(InvalidInput) as caught:
        sessions.start_session(administrator, helper, text)
    assert caught.value.field == "message"
    assert not Session.objects.exists()


def test_an_agent_of_another_organization_is_not_found(helper):
    other_administrator = factories.build_administrator(factories.create_organization("other"))
    with pytest.raises(NotFound):
        sessions.start_session(other_administrator, helper, "hello")


def test_a_member_can_run_only_their_agents(acme, helper):
    member = factories.create_member(acme, Role.MEMBER)
    with pytest.raises(Forbidden):
        sessions.start_session(member, helper, "hello")
    helper.members.add(member.id)
    assert sessions.start_session(member, helper, "hello").started_by == member.label


@pytest.mark.parametrize("role", [Role.REVIEWER, Role.AUDITOR])
def test_a_read_only_role_cant_run_agents(acme, helper, role):
    with pytest.raises(Forbidden):
        sessions.start_session(factories.create_member(acme, role), helper, "hello")


def test_a_disabled_agent_refuses_messages(administrator, helper):
    helper.enabled = False
    helper.save()
    with pytest.raises(Conflict) as caught:
        sessions.start_session(administrator, helper, "hello")
    assert caught.value.code == "agent_disabled"


def test_only_a_platform_administrator_can_attach_a_folder(acme, administrator, helper, tmp_path):
    owner = factories.create_member(acme, Role.OWNER)
    with pytest.raises(Forbidden):
        sessions.start_session(owner, helper, "hello", working_dir=str(tmp_path))
    with pytest.raises(InvalidInput):
        sessions.start_session(
            administrator, helper, "hello", working_dir=str(tmp_path / "nowhere")
        )
    assert sessions.start_session(
        administrator, helper, "x", working_dir=str(tmp_path)
    ).working_dir == str(tmp_path)


def test_a_message_continues_an_idle_session(administrator, helper):
    session = sessions.start_session(administrator, helper, "one")
    lease = leases.claim_session(session.pk, leases.register_runner())
    step_store.take_messages(lease)
    close_session(lease, Session.Status.DONE)
    sessions.send_message(administrator, session, "two")
    session.refresh_from_db()
    assert session.status == Session.Status.QUEUED


def test_a_message_that_arrives_while_a_turn_ends_isnt_lost(administrator, helper):
    session = sessions.start_session(administrator, helper, "one")
    lease = leases.claim_session(session.pk, leases.register_runner())
    step_store.take_messages(lease)
    sessions.send_message(administrator, session, "two")
    close_session(lease, Session.Status.DONE)
    session.refresh_from_db()
    assert session.status == Session.Status.QUEUED


def test_canceling_a_queued_session_ends_it_immediately(administrator, helper):
    session = sessions.start_session(administrator, helper, "one")
    assert sessions.cancel_session(administrator, session)
    session.refresh_from_db()
    assert session.status == Session.Status.CANCELLED
    assert not Inbox.objects.filter(processed_at=None).exists()


def test_canceling_a_running_session_sends_a_request_to_its_worker(administrator, helper):
    session = sessions.start_session(administrator, helper, "one")
    lease = leases.claim_session(session.pk, leases.register_runner())
    assert sessions.cancel_session(administrator, session)
    assert step_store.list_cancel_requests(lease.runner_id) == {session.pk}


def test_canceling_an_idle_session_changes_nothing(administrator, helper):
    session = sessions.start_session(administrator, helper, "one")
    lease = leases.claim_session(session.pk, leases.register_runner())
    step_store.take_messages(lease)
    close_session(lease, Session.Status.DONE)
    assert not sessions.cancel_session(administrator, session)
    session.refresh_from_db()
    assert session.status == Session.Status.DONE
