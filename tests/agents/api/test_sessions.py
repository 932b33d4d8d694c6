"""Sessions over REST: start, read, stream, send a message, cancel, export."""

import json
from uuid import UUID

import pytest

from agents.models import Agent, Inbox, Session, Step
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from tests import factories, rest
from tests.rest import RestClient

START_BODY = {"message": "What time is it in Asia/Tokyo?"}


@pytest.fixture
def acme(db: None) -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def operator(acme: Organization, helper: Agent) -> RestClient:
    return rest.as_role(acme, Role.OPERATOR)


def create_step(
    session_id: str | UUID, seq: int, kind: str, state: str = "done", **payload: object
) -> Step:
    step: Step = Step.objects.create(
        session_id=session_id, seq=seq, kind=kind, state=state, index=seq, payload=payload
    )
    return step


def test_a_session_is_started_and_waits_for_a_worker(operator, helper):
    created = operator.post("agents/helper/sessions", START_BODY)
    assert (created.status, created.json["status"], created.json["agent"]) == (
        201,
        "queued",
        "helper",
    )
    assert created.json["started_by"] == "operator token"
    assert operator.get(f"sessions/{created.json['id']}").json["steps"] == []
    assert Inbox.objects.get().payload["text"] == START_BODY["message"]


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
    response = operator.post("agents/helper/sessions", body)
    assert (response.status, response.code, response.json["field"]) == (400, code, field)
    assert not Session.objects.exists()


def test_a_folder_is_attached_by_platform_administrators_only(acme, operator, tmp_path):
    body = START_BODY | {"working_dir": str(tmp_path)}
    assert operator.post("agents/helper/sessions", body).status == 403
    assert rest.as_administrator().post("agents/helper/sessions", body).status == 201


def test_another_model_endpoint_is_chosen_by_its_id_or_slug(acme, helper, operator):
    endpoint = operator.post("model-endpoints", {"name": "Small", "kind": "offline"}).json
    assert endpoint["selectable"] is False
    for name in (endpoint["id"], endpoint["slug"]):
        body = START_BODY | {"model_endpoint": name}
        created = operator.post("agents/helper/sessions", body)
        assert (created.status, created.json["model_endpoint"]) == (201, endpoint["id"])
    assert operator.post("agents/helper/sessions", START_BODY).json["model_endpoint"] is None
    missing = operator.post("agents/helper/sessions", START_BODY | {"model_endpoint": "x"})
    assert (missing.status, missing.json["field"]) == (404, "model_endpoint")

    member, body = rest.as_role(acme, Role.MEMBER, helper), START_BODY | {"model_endpoint": "small"}
    refused = member.post("agents/helper/sessions", body)
    assert (refused.status, refused.code) == (403, "model_not_selectable")
    operator.patch(f"model-endpoints/{endpoint['id']}", {"selectable": True})
    assert member.post("agents/helper/sessions", body).status == 201


def test_an_output_schema_is_sent_with_a_message_and_its_value_returned(operator, helper):
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}}
    body = START_BODY | {"output_schema": schema}
    session_id = operator.post("agents/helper/sessions", body).json["id"]
    assert Inbox.objects.get().payload["output_schema"] == schema
    assert operator.post(f"sessions/{session_id}/messages", body).status == 202
    assert operator.get(f"sessions/{session_id}").json["output"] is None
    for unusable, code in (({"type": "string"}, "unusable_output_schema"), ([], "invalid")):
        refused = operator.post("agents/helper/sessions", START_BODY | {"output_schema": unusable})
        assert (refused.status, refused.code) == (400, code)
        assert refused.json["field"] == "output_schema"

    create_step(session_id, 1, "end", answer='{"count": 3}', output={"count": 3})
    Session.objects.filter(pk=session_id).update(status=Session.Status.DONE)
    answered = operator.get(f"sessions/{session_id}").json
    assert (answered["output"], answered["steps"][0]["output"]) == ({"count": 3}, {"count": 3})


def test_a_disabled_agent_starts_no_session(operator):
    operator.patch("agents/helper", {"enabled": False})
    response = operator.post("agents/helper/sessions", START_BODY)
    assert (response.status, response.code) == (409, "agent_disabled")


def test_a_session_is_returned_with_its_steps_without_raw_model_messages(operator):
    session_id = operator.post("agents/helper/sessions", START_BODY).json["id"]
    create_step(session_id, 1, "message", text="What time?", by="ann")
    create_step(
        session_id, 2, "model", text="Let me see.", message={"provider": "private"}, finish="tool"
    )
    create_step(
        session_id, 3, "call", name="mcp_time_now", arguments={}, text="noon", duration_ms=3
    )
    session = operator.get(f"sessions/{session_id}").json
    assert [row["kind"] for row in session["steps"]] == ["message", "model", "call"]
    assert session["steps"][2]["arguments"] == {}
    assert "private" not in json.dumps(session)
    assert session["more_steps"] is False
    steps = operator.get(f"sessions/{session_id}?after=2").json["steps"]
    assert [row["seq"] for row in steps] == [3]
    assert operator.get(f"sessions/{session_id}?after=x").json["field"] == "after"


def test_a_message_continues_an_idle_session(operator):
    session_id = operator.post("agents/helper/sessions", START_BODY).json["id"]
    Session.objects.update(status="done")
    response = operator.post(f"sessions/{session_id}/messages", {"message": "And in Berlin?"})
    assert (response.status, response.json["status"]) == (202, "queued")
    assert operator.post(f"sessions/{session_id}/messages", {"message": ""}).status == 400


def test_a_queued_session_is_canceled_immediately(operator):
    session_id = operator.post("agents/helper/sessions", START_BODY).json["id"]
    assert operator.post(f"sessions/{session_id}/cancel").json == {"cancelled": True}
    assert operator.post(f"sessions/{session_id}/cancel").json == {"cancelled": False}
    assert operator.get(f"sessions/{session_id}").json["status"] == "cancelled"


def test_sessions_are_filtered_by_agent_and_status(acme, operator, helper):
    factories.create_agent(acme, "other")
    operator.post("agents/helper/sessions", START_BODY)
    operator.post("agents/other/sessions", START_BODY)

    def list_agents(query: str) -> list[str]:
        return [row["agent"] for row in operator.get(query).json["results"]]

    assert list_agents("sessions") == ["other", "helper"]
    assert list_agents("sessions?agent=helper") == ["helper"]
    assert list_agents(f"sessions?agent={helper.pk}") == ["helper"]
    assert list_agents("sessions?agent=0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a1x") == []
    assert list_agents("agents/other/sessions") == ["other"]
    assert list_agents("sessions?status=done") == []


def test_a_member_can_read_only_their_own_sessions(acme, operator, helper):
    other_id = operator.post("agents/helper/sessions", START_BODY).json["id"]
    factories.create_member(acme, Role.MEMBER, "mia")
    user = User.objects.get(username="mia")
    helper.members.add(user)
    client = RestClient(user=user)
    own_id = client.post("agents/helper/sessions", START_BODY).json["id"]
    assert [row["id"] for row in client.get("sessions").json["results"]] == [own_id]
    assert [row["id"] for row in client.get("agents/helper/sessions").json["results"]] == [own_id]
    for path in ("", "/events"):
        assert client.get(f"sessions/{other_id}{path}").status == 404
    assert client.post(f"sessions/{other_id}/cancel").status == 404
    assert client.post(f"sessions/{other_id}/messages", START_BODY).status == 404


def test_the_list_uses_the_same_queries_for_any_number_of_sessions(
    operator, django_assert_num_queries
):
    for _ in range(10):
        operator.post("agents/helper/sessions", START_BODY)
    # The token, the sessions with their agents, the labels of the sessions and of the agents.
    with django_assert_num_queries(4):
        assert len(operator.get("sessions").json["results"]) == 10


@pytest.mark.parametrize("seq", ["x", "-1", "1.5", "9" * 20])
def test_a_stream_continues_after_an_event_id(operator, seq):
    session_id = operator.post("agents/helper/sessions", START_BODY).json["id"]
    response = operator.get(f"sessions/{session_id}/events", Last_Event_ID=seq)
    assert (response.status, response.json["field"]) == (400, "Last-Event-ID")


def finish_session(session_id: str) -> None:
    create_step(session_id, 1, "message", text="What time?")
    Session.objects.filter(pk=session_id).update(status="done")


def test_a_message_is_edited_and_resent_with_a_file(operator: RestClient):
    session_id = operator.post("agents/helper/sessions", START_BODY).json["id"]
    response = operator.post(f"sessions/{session_id}/retry", {"seq": 1})
    assert (response.status, response.json["code"]) == (404, "not_found")
    finish_session(session_id)
    file = {"name": "a.txt", "content": "aGk="}
    body = {"seq": 1, "message": "And now?", "attachments": [file]}
    response = operator.post(f"sessions/{session_id}/retry", body)
    assert (response.status, response.json["status"]) == (202, "queued")
    payload = Inbox.objects.latest("pk").payload
    assert (payload["text"], payload["replaces"], payload["files"][0]["name"]) == (
        "And now?",
        1,
        "a.txt",
    )
    response = operator.post(f"sessions/{session_id}/retry", {})
    assert (response.status, response.json["code"]) == (409, "session_busy")
    Session.objects.update(status="done")
    assert operator.post(f"sessions/{session_id}/retry", {}).status == 202
    assert Inbox.objects.latest("pk").payload["text"] == "What time?"


@pytest.mark.parametrize("path", ["agents/helper/sessions", "sessions/{}/messages"])
def test_an_unsupported_file_is_refused(operator: RestClient, path: str):
    session_id = operator.post("agents/helper/sessions", START_BODY).json["id"]
    body = START_BODY | {"attachments": [{"name": "a.exe", "content": "/wA="}]}
    response = operator.post(path.format(session_id), body)
    assert (response.status, response.json["field"]) == (400, "attachments")
    assert Inbox.objects.count() == 1


def test_a_session_is_exported(operator: RestClient):
    session_id = operator.post("agents/helper/sessions", START_BODY).json["id"]
    finish_session(session_id)
    text = operator.get(f"sessions/{session_id}/export")
    assert "> What time?" in text.text
    exported = operator.get(f"sessions/{session_id}/export?as=json")
    assert exported.json["steps"][0]["text"] == "What time?"
    response = operator.get(f"sessions/{session_id}/export?as=pdf")
    assert (response.status, response.json["field"]) == (400, "as")


def test_an_attached_text_is_returned_as_plain_text(operator: RestClient):
    file = {"name": "a.html", "content": "PGI+aGk8L2I+"}
    body = START_BODY | {"attachments": [file]}
    session_id = operator.post("agents/helper/sessions", body).json["id"]
    [attachment] = Inbox.objects.get().payload["files"]
    path = f"sessions/{session_id}/files/{attachment['sha256']}"
    assert operator.get(path).status == 404
    create_step(session_id, 1, "message", text="x", files=[attachment])
    response = operator.get(path)
    assert (response.text, response.headers["Content-Type"]) == (
        "<b>hi</b>",
        "text/plain; charset=utf-8",
    )
    assert "sandbox" in response.headers["Content-Security-Policy"]


def test_an_exported_session_is_imported(acme: Organization, operator: RestClient):
    session_id = operator.post("agents/helper/sessions", START_BODY).json["id"]
    finish_session(session_id)
    exported = operator.get(f"sessions/{session_id}/export?as=json").json
    imported = operator.post("agents/helper/sessions/import", {"session": exported})
    assert (imported.status, imported.json["started_by"]) == (201, "operator token")
    assert imported.json["status"] == Session.objects.get(pk=session_id).status
    steps = operator.get(f"sessions/{imported.json['id']}").json["steps"]
    assert steps[1]["text"] == "What time?"
    continued = operator.post(f"sessions/{imported.json['id']}/messages", {"message": "And now?"})
    assert (continued.status, continued.json["status"]) == (202, "queued")
    exported["steps"][0]["kind"] = "x"
    refused = operator.post("agents/helper/sessions/import", {"session": exported})
    assert (refused.status, refused.json["field"]) == (400, "session.steps[0].kind")
    auditor = rest.as_role(acme, Role.AUDITOR)
    path = "agents/helper/sessions/import"
    assert auditor.post(path, {"session": exported}).json["code"] == "forbidden"
