"""Notes: stored and searched by agents, viewed and changed by people."""

import pytest

from agents import notes
from agents.builtin_tools.toolset_options import NOTES_TOOLSET
from agents.calls.pipeline import CallRefused
from agents.flow_labels.services import list_current_labels, list_session_labels
from agents.models import Agent, Note
from agents.models import notes as limits
from agents.services import AgentSpec, update_agent
from agents.sessions import services as sessions
from bonobot.accounts.roles import Role
from bonobot.core.problems import InvalidInput, Problem
from bonobot.ledger.models import AuditRow
from mcp_servers.flow_labels import FlowLabel, encode_labels
from mcp_servers.flow_labels.effective_labels import set_labels
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def agent(acme, helper):
    """The agent with the notes toolset."""
    administrator = factories.build_administrator(acme)
    return update_agent(
        administrator, helper, AgentSpec(name=helper.name, builtin_tools=[NOTES_TOOLSET])
    )


def test_notes_are_disabled_by_default(acme, helper, call):
    with pytest.raises(CallRefused) as denied:
        call("remember", {"title": "a", "text": "b"})
    assert denied.value.code == "builtin_disabled"
    administrator = factories.build_administrator(acme)
    with pytest.raises(InvalidInput) as invalid:
        update_agent(administrator, helper, AgentSpec(name=helper.name, builtin_tools=["nothing"]))
    assert invalid.value.field == "builtin_tools"


def test_notes_are_stored_found_replaced_and_deleted(agent, call):
    assert "Kept" in call("remember", {"title": "Release day", "text": "On Mondays."}).text
    assert "Replaced" in call("remember", {"title": "Release day", "text": "On Tuesdays."}).text
    call("remember", {"title": "Lunch", "text": "The release team eats at noon."})
    text = call("search_notes", {"query": "which day is the RELEASE?"}).text
    assert text.index("On Tuesdays.") < text.index("at noon")
    assert "Lunch" not in call("search_notes", {"query": "day"}).text
    assert call("search_notes", {"limit": 1}).text.startswith("## Lunch")
    call("forget", {"title": "Release day"})
    assert call("forget", {"title": "Release day"}).code == "not_found"
    assert [note.title for note in Note.objects.all()] == ["Lunch"]
    rows = AuditRow.objects.filter(action="agent_tool_call", tool_name="remember")
    assert {row.resource_type for row in rows} == {"builtin_tool"}


def test_the_policy_applies_to_notes_as_to_any_tool(acme, agent, call):
    factories.set_policy(
        factories.build_administrator(acme),
        agent,
        factories.PolicySpec("allowlist", allow=("search_notes",)),
    )
    assert call("search_notes").text == "No notes yet."
    with pytest.raises(CallRefused) as caught:
        call("remember", {"title": "a", "text": "b"})
    assert caught.value.code == "denied_by_policy"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"title": " ", "text": "b"}, "invalid"),
        ({"title": "a", "text": "\n"}, "invalid"),
        ({"title": "a", "text": "b" * (limits.MAX_NOTE_LENGTH + 1)}, "invalid_arguments"),
    ],
)
def test_the_size_of_a_note_is_limited(agent, call, arguments, code):
    try:
        result_code = call("remember", arguments).code
    except Problem as problem:
        result_code = problem.code
    assert result_code == code
    assert not Note.objects.exists()


def test_the_number_of_notes_per_agent_is_limited(acme, agent, call):
    Note.objects.bulk_create(
        Note(organization=acme, agent=agent, title=f"{n}", text="x", written_by="x")
        for n in range(limits.MAX_NOTES)
    )
    assert call("remember", {"title": "one more", "text": "b"}).code == "notes_full"
    assert not call("remember", {"title": "7", "text": "changed"}).is_error


def test_agents_dont_share_notes(acme, agent, call):
    call("remember", {"title": "mine", "text": "secretive"})
    other_agent = factories.create_agent(acme, "other", builtin_tools=[NOTES_TOOLSET])
    assert call("search_notes", agent_id=other_agent.pk).text == "No notes yet."


def test_a_note_keeps_the_labels_of_its_writer(acme, agent, workshop, call):
    administrator = factories.build_administrator(acme)
    rows = list(workshop.definitions.filter(name="echo"))
    set_labels(administrator, workshop, rows, [FlowLabel.UNTRUSTED_CONTENT])
    writer, reader = (sessions.start_session(administrator, agent, "Hello") for _ in range(2))
    call("remember", {"title": "before", "text": "plain"}, session_id=writer.pk)
    call("mcp_workshop_echo", {"text": "from anybody"}, session_id=writer.pk)
    call("remember", {"title": "after", "text": "tainted"}, session_id=writer.pk)
    assert {item.title: item.labels for item in Note.objects.all()} == {
        "before": 0,
        "after": encode_labels([FlowLabel.UNTRUSTED_CONTENT]),
    }
    reader_fields = {"session_id": reader.pk, "agent_id": agent.pk}
    call("search_notes", {"query": "plain"}, session_id=reader.pk)
    assert list_current_labels(administrator, **reader_fields) == ()
    assert "tainted" in call("search_notes", {"query": "after"}, session_id=reader.pk).text
    assert list_current_labels(administrator, **reader_fields) == (FlowLabel.UNTRUSTED_CONTENT,)
    labels = list_session_labels(reader)
    assert [item.label for item in labels] == [FlowLabel.UNTRUSTED_CONTENT]
    # Labels are passed from note to note.
    call("remember", {"title": "third", "text": "again"}, session_id=reader.pk)
    assert Note.objects.get(title="third").labels == encode_labels([FlowLabel.UNTRUSTED_CONTENT])


def test_a_note_written_after_the_admission_isnt_returned(acme, agent, call, monkeypatch):
    """A note with more labels is stored between the decision and the search."""
    new_note = Note(
        organization=acme, agent=agent, title="late", text="x", written_by="x", labels=2
    )
    original = notes.search_notes

    def search(agent_id: object, query: str, *, limit: int) -> list[Note]:
        results = original(agent.pk, query, limit=limit)
        if not Note.objects.exists():
            new_note.save()
        return results

    monkeypatch.setattr(notes, "search_notes", search)
    assert call("search_notes").text == "No notes yet."
    assert "late" in call("search_notes").text


def test_secrets_are_masked_in_notes(acme, agent, call):
    server = factories.create_http_server(acme, "http://127.0.0.1:9/mcp")
    server.secrets.create(
        organization=acme, placement="header", name="X", value="hunter2-hunter2-hunter2"
    )
    call("remember", {"title": "key", "text": "It is hunter2-hunter2-hunter2."})
    assert "hunter2" not in Note.objects.get().text


# -- REST and the admin --------------------------------------------------------------------------


def test_rest_creates_updates_and_deletes_notes(acme, helper):
    operator = rest.as_role(acme, Role.OPERATOR)
    fields = {"title": "Day", "text": "Tuesday", "labels": ["untrusted_content"]}
    created = operator.post("agents/helper/notes", fields)
    assert (created.status, created.json["labels"]) == (201, ["untrusted_content"])
    assert operator.post("agents/helper/notes", fields).code == "name_taken"
    assert operator.get("agents/helper/notes?q=nothing").json["results"] == []
    assert len(operator.get("agents/helper/notes?q=tuesday").json["results"]) == 1
    path = f"agents/helper/notes/{created.json['id']}"
    assert operator.patch(path, {"text": "Monday"}).json["labels"] == ["untrusted_content"]
    assert operator.patch(path, {"labels": []}).json == operator.get(path).json
    assert operator.post("agents/helper/notes", {**fields, "labels": ["sends_out"]}).status == 400
    other_agent = factories.create_agent(acme, "other")
    assert operator.get(f"agents/{other_agent.slug}/notes/{created.json['id']}").status == 404
    assert operator.delete(path).status == 204
    actions = AuditRow.objects.filter(resource_type="note").order_by("seq")
    assert [row.action for row in actions] == [
        "note_created",
        "note_updated",
        "note_updated",
        "note_deleted",
    ]
    # The response to the creation quotes the note, so that the token holds its labels from then on.
    read = AuditRow.objects.get(action="text_labels_read")
    assert read.resource_type == "response"


def test_rest_sets_the_toolsets_of_an_agent(acme, helper):
    operator = rest.as_role(acme, Role.OPERATOR)
    assert operator.patch("agents/helper", {"builtin_tools": {"notes": {}}}).status == 200
    assert operator.get("agents/helper").json["builtin_tools"] == {"notes": {}}
    rejected = operator.patch("agents/helper", {"builtin_tools": {"everything": {}}})
    assert (rejected.status, rejected.json["field"]) == (400, "builtin_tools")


def test_the_tab_shows_and_updates_notes(acme: object, helper: Agent):
    operator = admin_client.sign_in(helper.organization, Role.OPERATOR)
    page = operator.post(
        "agents_agent_notes", helper.pk, title="Day <b>", text="Tuesday", labels=["private_data"]
    )
    assert "Day &lt;b&gt;" in page
    note = Note.objects.get()
    page = admin_client.get_text(operator.get("agents_agent_notes", helper.pk))
    assert "private data" in page
    assert "Enable them" in page
    operator.post("agents_agent_remove_note", helper.pk, note=note.pk)
    operator.post("agents_agent_notes", helper.pk, title="a", text="b")
    operator.post("agents_agent_clear_notes", helper.pk)
    assert not Note.objects.exists()
    auditor = admin_client.sign_in(helper.organization, Role.AUDITOR)
    auditor.post("agents_agent_notes", helper.pk, status=403, title="a", text="b")
    assert not Note.objects.exists()
