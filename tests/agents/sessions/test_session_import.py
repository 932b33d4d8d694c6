"""Imports of exported sessions."""

import json

import pytest

from agents.flow_labels.services import list_session_labels
from agents.llm.message_order import order_messages
from agents.models import Inbox, Session, Step
from agents.services import AgentSpec, update_agent
from agents.sessions.export import export_session
from agents.sessions.history import load_history
from agents.sessions.services import send_message
from agents.sessions.session_import import (
    MAX_FILE_BYTES,
    UnusableSessionFile,
    import_session,
    parse_session_file,
)
from bonobot.accounts.roles import Role
from bonobot.core.problems import Conflict, Forbidden, NotFound
from bonobot.ledger.models import AuditRow
from mcp_servers.flow_labels import FlowLabel
from tests import factories
from tests.agents.sessions.client_request_sessions import run_session

MESSAGE = {"seq": 1, "kind": "message", "state": "done", "text": "Hi", "by": "ann"}
TURN = {"seq": 2, "kind": "model", "state": "done", "turn": 1, "text": "Hello"}
CALL = {
    "seq": 3,
    "kind": "call",
    "state": "done",
    "turn": 1,
    "index": 0,
    "name": "mcp_x",
    "arguments": {"a": 1},
    "text": "out",
    "server": "docs",
}
END = {"seq": 4, "kind": "end", "state": "done", "answer": "Hello"}


def build_file(*steps, **header):
    document = {"id": "s1", "agent": "old", "title": "T", "status": "done", "steps": list(steps)}
    return json.dumps(document | header).encode()


def test_a_call_without_a_result_is_imported_as_unknown():
    file = parse_session_file(build_file(MESSAGE, TURN, CALL | {"state": "intent", "text": ""}))
    assert [step.state for step in file.steps] == ["done", "done", "unknown"]
    assert "may or may not have run" in file.steps[-1].payload["text"]


def test_an_unfinished_session_is_imported_as_canceled():
    assert parse_session_file(build_file(MESSAGE, status="running")).status == "cancelled"


def test_results_are_framed_and_notices_have_no_effect():
    marks = {"seq": 4, "kind": "notice", "state": "done", "text": "x", "marks": {}, "code": "a"}
    file = parse_session_file(build_file(MESSAGE, TURN, CALL | {"frame": None}, marks))
    assert file.steps[2].payload["frame"]["source"] == "imported docs mcp_x"
    assert file.steps[3].payload == {"text": "x", "code": "imported_notice"}


@pytest.mark.parametrize(
    ("steps", "field"),
    [
        ((), "steps"),
        (("text",), "steps[0]"),
        ((MESSAGE | {"seq": "1"},), "steps[0].seq"),
        ((MESSAGE, MESSAGE), "steps[1].seq"),
        ((MESSAGE | {"kind": "secret"},), "steps[0].kind"),
        ((MESSAGE | {"state": "x"},), "steps[0].state"),
        ((MESSAGE | {"text": 5},), "steps[0].text"),
        ((MESSAGE | {"text": "x" * 100_001},), "steps[0].text"),
        ((MESSAGE | {"replaces": 1},), "steps[0].replaces"),
        ((MESSAGE | {"replaces": []},), "steps[0].replaces"),
        ((MESSAGE | {"output_schema": {"type": 5}},), "steps[0].output_schema"),
        ((MESSAGE | {"output_schema": "x"},), "steps[0].output_schema"),
        ((TURN,), "steps[0].kind"),
        ((MESSAGE, TURN | {"turn": True}), "steps[1].turn"),
        ((MESSAGE, TURN, TURN | {"seq": 3}), "steps[2].turn"),
        ((MESSAGE, CALL), "steps[1].turn"),
        ((MESSAGE, TURN, CALL | {"index": 1}), "steps[2].index"),
        ((MESSAGE, TURN, CALL | {"name": "rm -rf"}), "steps[2].name"),
        ((MESSAGE, TURN, CALL | {"arguments": []}), "steps[2].arguments"),
        ((MESSAGE, TURN, CALL | {"flagged": [1]}), "steps[2].flagged"),
        ((MESSAGE, TURN, CALL, MESSAGE | {"seq": 4}, CALL | {"seq": 5}), "steps[4].index"),
    ],
)
def test_a_file_with_a_wrong_field_is_refused(steps, field):
    with pytest.raises(UnusableSessionFile) as refused:
        parse_session_file(build_file(*steps))
    assert (refused.value.code, refused.value.field) == ("unusable_session_file", field)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"# A session in Markdown", "unusable_session_file"),
        (b"\xff", "unusable_session_file"),
        (b"[]", "unusable_session_file"),
        (b"[" * 100_000, "unusable_session_file"),
        (build_file(MESSAGE, version=2), "unusable_session_file"),
        (
            build_file(*[MESSAGE | {"seq": number} for number in range(2_001)]),
            "unusable_session_file",
        ),
        (b" " * (MAX_FILE_BYTES + 1), "session_file_too_large"),
    ],
)
def test_a_file_that_is_no_usable_export_is_refused(content, code):
    with pytest.raises(UnusableSessionFile) as refused:
        parse_session_file(content)
    assert refused.value.code == code
    assert refused.value.remedy


@pytest.fixture
def exported_session(acme, helper):
    """Return a session with a replaced message, a call and a failed turn, and its export."""
    session = Session.objects.create(
        organization=acme, agent=helper, title="What time is it?", status="done", started_by="ann"
    )
    steps = [
        ("message", {"text": "old words", "by": "ann"}),
        ("model", {"text": "old answer", "message": {}}),
        ("message", {"text": "time?", "by": "ann", "replaces": 1, "images": [{"sha256": "0"}]}),
        ("model", {"text": "Let me look.", "thinking": "Hm", "message": {}}),
        ("call", {"name": "mcp_clock", "arguments": {"zone": "UTC"}, "text": "12:00"}),
        ("model", {"text": "Noon.", "message": {}}),
        ("end", {"answer": "Noon."}),
    ]
    for seq, (kind, payload) in enumerate(steps, start=1):
        Step.objects.create(
            session=session,
            seq=seq,
            kind=kind,
            state="done",
            payload=payload,
            turn=4 if kind == "call" else seq,
        )
    return session, parse_session_file(export_session(session, "json").encode())


@pytest.mark.django_db
def test_an_exported_session_is_imported_as_a_finished_one(acme, helper, exported_session):
    original, content = exported_session
    member = factories.create_member(acme, Role.OPERATOR)
    session = import_session(member, helper, content)
    assert (session.status, session.turns, session.calls) == ("done", 3, 1)
    assert (session.title, session.started_by) == ("What time is it?", member.label)
    assert (session.cost_microusd, session.input_tokens) == (0, 0)
    kinds = [step.kind for step in session.steps.order_by("seq")]
    assert kinds == ["notice", *(step.kind for step in original.steps.order_by("seq"))]
    assert not session.steps.filter(state=Step.State.INTENT).exists()
    assert not session.steps.exclude(call_id=None).exists()
    assert not Inbox.objects.filter(session=session).exists()
    notice = session.steps.get(seq=1)
    assert notice.payload["code"] == "session_imported"
    assert "1 images and files weren't imported" in notice.payload["text"]


@pytest.mark.django_db
def test_a_model_sees_the_imported_conversation(acme, helper, exported_session):
    session = import_session(factories.build_administrator(acme), helper, exported_session[1])
    messages = order_messages(load_history(session.pk).messages)
    assert [(message["role"], message["text"]) for message in messages] == [
        ("user", "time?"),
        ("assistant", "Let me look."),
        ("tool", "12:00"),
        ("assistant", "Noon."),
    ]
    assert messages[1]["calls"] == [
        {"id": "t0004c000", "name": "mcp_clock", "arguments": {"zone": "UTC"}}
    ]


@pytest.mark.django_db
def test_an_import_is_audited_and_labels_the_session(acme, helper, exported_session):
    session = import_session(factories.build_administrator(acme), helper, exported_session[1])
    row = AuditRow.objects.get(action="session_imported")
    assert row.resource_id == str(session.pk)
    assert f'"source_session":"{exported_session[0].pk}"' in row.opened
    assert {label.label for label in list_session_labels(session)} == {
        FlowLabel.PRIVATE_DATA,
        FlowLabel.UNTRUSTED_CONTENT,
    }


@pytest.mark.django_db
def test_an_export_of_an_imported_session_can_be_imported(acme, helper, exported_session):
    administrator = factories.build_administrator(acme)
    first = import_session(administrator, helper, exported_session[1])
    second = import_session(
        administrator, helper, parse_session_file(export_session(first, "json").encode())
    )
    shown = [load_history(session.pk).messages for session in (first, second)]
    texts = [[message["text"] for message in messages] for messages in shown]
    assert texts[0] == texts[1]


@pytest.mark.django_db
def test_only_those_who_may_run_an_agent_import_sessions_into_it(acme, helper, exported_session):
    content = exported_session[1]
    with pytest.raises(Forbidden):
        import_session(factories.create_member(acme, Role.AUDITOR), helper, content)
    other_organization = factories.create_organization("other")
    with pytest.raises(NotFound):
        import_session(factories.build_administrator(other_organization), helper, content)
    administrator = factories.build_administrator(acme)
    update_agent(administrator, helper, AgentSpec(name="Helper", enabled=False))
    helper.refresh_from_db()
    with pytest.raises(Conflict) as refused:
        import_session(administrator, helper, content)
    assert refused.value.code == "agent_disabled"


@pytest.mark.django_db(transaction=True)
def test_an_imported_session_is_continued_without_repeating_its_calls(acme, helper, runner):
    administrator = factories.build_administrator(acme)
    unfinished = CALL | {"state": "intent", "text": ""}
    session = import_session(
        administrator, helper, parse_session_file(build_file(MESSAGE, TURN, unfinished))
    )
    send_message(administrator, session, "Go on")
    session = run_session(session, runner)
    assert (session.status, session.turns, session.calls) == ("done", 2, 1)
    assert session.steps.get(kind="call").state == "unknown"
