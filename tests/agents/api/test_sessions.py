"""Sessions over REST: start, read, follow, message, cancel."""

import json
from uuid import UUID

import pytest

from agents.models import Agent, Inbox, Session, Step
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from tests import factories, rest
from tests.rest import Rest

STARTED = {"message": "What time is it in Asia/Tokyo?"}


@pytest.fixture
def acme(db: None) -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def operator(acme: Organization, helper: Agent) -> Rest:
    return rest.as_role(acme, Role.OPERATOR)


def step(
    session_id: str | UUID, seq: int, kind: str, state: str = "done", **payload: object
) -> Step:
    made: Step = Step.objects.create(
        session_id=session_id, seq=seq, kind=kind, state=state, index=seq, payload=payload
    )
    return made


def test_a_session_is_started_and_waits_for_a_worker(operator, helper):
    made = operator.post("agents/helper/sessions", STARTED)
    assert (made.status, made.json["status"], made.json["agent"]) == (201, "queued", "helper")
    assert made.json["started_by"] == "operator token"
    assert operator.get(f"sessions/{made.json['id']}").json["steps"] == []
    assert Inbox.objects.get().payload["text"] == STARTED["message"]


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"message": " "}, "invalid", "message"),
        ({"message": ""}, "invalid", "message"),
        ({}, "invalid", "message"),
        ({"message": "x" * 100_001}, "invalid", "message"),
        ({"message": "x", "model": "y"}, "unknown_field", "model"),
    ],
)
def test_a_session_without_a_message_is_refused(operator, body, code, field):
    answer = operator.post("agents/helper/sessions", body)
    assert (answer.status, answer.code, answer.json["field"]) == (400, code, field)
    assert not Session.objects.exists()


def test_a_folder_is_attached_by_platform_administrators_only(acme, operator, tmp_path):
    body = STARTED | {"working_dir": str(tmp_path)}
    assert operator.post("agents/helper/sessions", body).status == 403
    assert rest.as_administrator().post("agents/helper/sessions", body).status == 201


def test_a_disabled_agent_starts_no_session(operator):
    operator.patch("agents/helper", {"enabled": False})
    answer = operator.post("agents/helper/sessions", STARTED)
    assert (answer.status, answer.code) == (409, "agent_disabled")


def test_a_session_is_returned_with_its_steps_without_raw_model_messages(operator):
    session_id = operator.post("agents/helper/sessions", STARTED).json["id"]
    step(session_id, 1, "message", text="What time?", by="ann")
    step(session_id, 2, "model", text="Let me see.", message={"provider": "private"}, finish="tool")
    step(session_id, 3, "call", name="mcp_time_now", arguments={}, text="noon", duration_ms=3)
    found = operator.get(f"sessions/{session_id}").json
    assert [one["kind"] for one in found["steps"]] == ["message", "model", "call"]
    assert found["steps"][2]["arguments"] == {}
    assert "private" not in json.dumps(found)
    assert found["more_steps"] is False
    later = operator.get(f"sessions/{session_id}?after=2").json["steps"]
    assert [one["seq"] for one in later] == [3]
    assert operator.get(f"sessions/{session_id}?after=x").json["field"] == "after"


def test_a_message_continues_an_idle_session(operator):
    session_id = operator.post("agents/helper/sessions", STARTED).json["id"]
    Session.objects.update(status="done")
    answer = operator.post(f"sessions/{session_id}/messages", {"message": "And in Berlin?"})
    assert (answer.status, answer.json["status"]) == (202, "queued")
    assert operator.post(f"sessions/{session_id}/messages", {"message": ""}).status == 400


def test_a_queued_session_is_canceled_immediately(operator):
    session_id = operator.post("agents/helper/sessions", STARTED).json["id"]
    assert operator.post(f"sessions/{session_id}/cancel").json == {"cancelled": True}
    assert operator.post(f"sessions/{session_id}/cancel").json == {"cancelled": False}
    assert operator.get(f"sessions/{session_id}").json["status"] == "cancelled"


def test_sessions_are_filtered_by_agent_and_status(acme, operator, helper):
    factories.create_agent(acme, "other")
    operator.post("agents/helper/sessions", STARTED)
    operator.post("agents/other/sessions", STARTED)

    def agents(query: str) -> list[str]:
        return [one["agent"] for one in operator.get(query).json["results"]]

    assert agents("sessions") == ["other", "helper"]
    assert agents("sessions?agent=helper") == ["helper"]
    assert agents(f"sessions?agent={helper.pk}") == ["helper"]
    assert agents("sessions?agent=0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a1x") == []
    assert agents("agents/other/sessions") == ["other"]
    assert agents("sessions?status=done") == []


def test_a_member_can_read_only_their_own_sessions(acme, operator, helper):
    theirs = operator.post("agents/helper/sessions", STARTED).json["id"]
    factories.create_member(acme, Role.MEMBER, "mia")
    user = User.objects.get(username="mia")
    helper.members.add(user)
    client = Rest(user=user)
    own = client.post("agents/helper/sessions", STARTED).json["id"]
    assert [one["id"] for one in client.get("sessions").json["results"]] == [own]
    assert [one["id"] for one in client.get("agents/helper/sessions").json["results"]] == [own]
    for path in ("", "/events"):
        assert client.get(f"sessions/{theirs}{path}").status == 404
    assert client.post(f"sessions/{theirs}/cancel").status == 404
    assert client.post(f"sessions/{theirs}/messages", STARTED).status == 404


def test_the_list_uses_the_same_queries_for_any_number_of_sessions(
    operator, django_assert_num_queries
):
    for _ in range(10):
        operator.post("agents/helper/sessions", STARTED)
    with django_assert_num_queries(2):  # the token, the sessions with their agents
        assert len(operator.get("sessions").json["results"]) == 10


@pytest.mark.parametrize("seq", ["x", "-1", "1.5", "9" * 20])
def test_a_stream_continues_after_an_event_id(operator, seq):
    session_id = operator.post("agents/helper/sessions", STARTED).json["id"]
    answer = operator.get(f"sessions/{session_id}/events", Last_Event_ID=seq)
    assert (answer.status, answer.json["field"]) == (400, "Last-Event-ID")


def rested(session_id: str) -> None:
    step(session_id, 1, "message", text="What time?")
    Session.objects.filter(pk=session_id).update(status="done")


def test_a_message_is_edited_and_resent_with_a_file(operator: Rest):
    session_id = operator.post("agents/helper/sessions", STARTED).json["id"]
    busy = operator.post(f"sessions/{session_id}/retry", {"seq": 1})
    assert (busy.status, busy.json["code"]) == (404, "not_found")
    rested(session_id)
    file = {"name": "a.txt", "content": "aGk="}
    body = {"seq": 1, "message": "And now?", "attachments": [file]}
    again = operator.post(f"sessions/{session_id}/retry", body)
    assert (again.status, again.json["status"]) == (202, "queued")
    left = Inbox.objects.latest("pk").payload
    assert (left["text"], left["replaces"], left["files"][0]["name"]) == ("And now?", 1, "a.txt")
    busy = operator.post(f"sessions/{session_id}/retry", {})
    assert (busy.status, busy.json["code"]) == (409, "session_busy")
    Session.objects.update(status="done")
    assert operator.post(f"sessions/{session_id}/retry", {}).status == 202
    assert Inbox.objects.latest("pk").payload["text"] == "What time?"


@pytest.mark.parametrize("path", ["agents/helper/sessions", "sessions/{}/messages"])
def test_an_unsupported_file_is_refused(operator: Rest, path: str):
    session_id = operator.post("agents/helper/sessions", STARTED).json["id"]
    body = STARTED | {"attachments": [{"name": "a.exe", "content": "/wA="}]}
    refused = operator.post(path.format(session_id), body)
    assert (refused.status, refused.json["field"]) == (400, "attachments")
    assert Inbox.objects.count() == 1


def test_a_session_is_exported(operator: Rest):
    session_id = operator.post("agents/helper/sessions", STARTED).json["id"]
    rested(session_id)
    text = operator.get(f"sessions/{session_id}/export")
    assert "> What time?" in text.text
    found = operator.get(f"sessions/{session_id}/export?as=json")
    assert found.json["steps"][0]["text"] == "What time?"
    refused = operator.get(f"sessions/{session_id}/export?as=pdf")
    assert (refused.status, refused.json["field"]) == (400, "as")


def test_an_attached_text_is_returned_as_plain_text(operator: Rest):
    file = {"name": "a.html", "content": "PGI+aGk8L2I+"}
    body = STARTED | {"attachments": [file]}
    session_id = operator.post("agents/helper/sessions", body).json["id"]
    [named] = Inbox.objects.get().payload["files"]
    path = f"sessions/{session_id}/files/{named['sha256']}"
    assert operator.get(path).status == 404
    step(session_id, 1, "message", text="x", files=[named])
    shown = operator.get(path)
    assert (shown.text, shown.headers["Content-Type"]) == ("<b>hi</b>", "text/plain; charset=utf-8")
    assert "sandbox" in shown.headers["Content-Security-Policy"]
