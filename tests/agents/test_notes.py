"""Notes: kept and searched by the agent through the door, seen and changed by people."""

import pytest

from agents import notes
from agents.builtin_tools.toolset_options import NOTES_TOOLSET
from agents.calls.pipeline import CallRefused
from agents.flow_labels.services import list_current_labels, list_session_labels
from agents.models import Agent, Note
from agents.models import agents as bounds
from agents.services import AgentSpec, update_agent
from agents.sessions import services as sessions
from bonobot.accounts.roles import Role
from bonobot.core.problems import InvalidInput, Problem
from bonobot.ledger.models import AuditRow
from mcp_servers.flow_labels import FlowLabel, encode_labels
from mcp_servers.flow_labels.services import set_labels
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def keeper(acme, helper):
    """The agent with its tools for notes."""
    boss = factories.build_administrator(acme)
    return update_agent(boss, helper, AgentSpec(name=helper.name, builtin_tools=[NOTES_TOOLSET]))


def test_notes_are_disabled_by_default(acme, helper, call):
    with pytest.raises(CallRefused) as missing:
        call("remember", {"title": "a", "text": "b"})
    assert missing.value.code == "builtin_disabled"
    boss = factories.build_administrator(acme)
    with pytest.raises(InvalidInput) as refused:
        update_agent(boss, helper, AgentSpec(name=helper.name, builtin_tools=["nothing"]))
    assert refused.value.field == "builtin_tools"


def test_notes_are_stored_found_replaced_and_deleted(keeper, call):
    assert "Kept" in call("remember", {"title": "Release day", "text": "On Mondays."}).text
    assert "Replaced" in call("remember", {"title": "Release day", "text": "On Tuesdays."}).text
    call("remember", {"title": "Lunch", "text": "The release team eats at noon."})
    found = call("search_notes", {"query": "which day is the RELEASE?"}).text
    assert found.index("On Tuesdays.") < found.index("at noon")
    assert "Lunch" not in call("search_notes", {"query": "day"}).text
    assert call("search_notes", {"limit": 1}).text.startswith("## Lunch")
    call("forget", {"title": "Release day"})
    assert call("forget", {"title": "Release day"}).code == "not_found"
    assert [note.title for note in Note.objects.all()] == ["Lunch"]
    rows = AuditRow.objects.filter(action="agent_tool_call", tool_name="remember")
    assert {row.resource_type for row in rows} == {"builtin_tool"}


def test_the_policy_applies_to_notes_as_to_any_tool(acme, keeper, call):
    factories.set_policy(
        factories.build_administrator(acme),
        keeper,
        factories.PolicySpec("allowlist", allow=("search_notes",)),
    )
    assert call("search_notes").text == "No notes yet."
    with pytest.raises(CallRefused) as refused:
        call("remember", {"title": "a", "text": "b"})
    assert refused.value.code == "denied_by_policy"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"title": " ", "text": "b"}, "invalid"),
        ({"title": "a", "text": "\n"}, "invalid"),
        ({"title": "a", "text": "b" * (bounds.MAX_NOTE_LENGTH + 1)}, "invalid_arguments"),
    ],
)
def test_the_size_of_a_note_is_limited(keeper, call, arguments, code):
    try:
        found = call("remember", arguments).code
    except Problem as problem:
        found = problem.code
    assert found == code
    assert not Note.objects.exists()


def test_the_number_of_notes_per_agent_is_limited(acme, keeper, call):
    Note.objects.bulk_create(
        Note(organization=acme, agent=keeper, title=f"{n}", text="x", written_by="x")
        for n in range(bounds.MAX_NOTES)
    )
    assert call("remember", {"title": "one more", "text": "b"}).code == "notes_full"
    assert not call("remember", {"title": "7", "text": "changed"}).is_error


def test_agents_dont_share_notes(acme, keeper, call):
    call("remember", {"title": "mine", "text": "secretive"})
    other = factories.create_agent(acme, "other", builtin_tools=[NOTES_TOOLSET])
    assert call("search_notes", agent_id=other.pk).text == "No notes yet."


def test_a_note_keeps_the_labels_of_its_writer(acme, keeper, workshop, call):
    boss = factories.build_administrator(acme)
    rows = list(workshop.definitions.filter(name="echo"))
    set_labels(boss, workshop, rows, [FlowLabel.UNTRUSTED_CONTENT])
    writing, reading = (sessions.start_session(boss, keeper, "Hello") for _ in range(2))
    call("remember", {"title": "before", "text": "plain"}, session_id=writing.pk)
    call("mcp_workshop_echo", {"text": "from anybody"}, session_id=writing.pk)
    call("remember", {"title": "after", "text": "tainted"}, session_id=writing.pk)
    assert {one.title: one.labels for one in Note.objects.all()} == {
        "before": 0,
        "after": encode_labels([FlowLabel.UNTRUSTED_CONTENT]),
    }
    held = {"session_id": reading.pk, "agent_id": keeper.pk}
    call("search_notes", {"query": "plain"}, session_id=reading.pk)
    assert list_current_labels(boss, **held) == ()
    assert "tainted" in call("search_notes", {"query": "after"}, session_id=reading.pk).text
    assert list_current_labels(boss, **held) == (FlowLabel.UNTRUSTED_CONTENT,)
    brought = list_session_labels(reading)
    assert [one.label for one in brought] == [FlowLabel.UNTRUSTED_CONTENT]
    # The taint goes on from note to note.
    call("remember", {"title": "third", "text": "again"}, session_id=reading.pk)
    assert Note.objects.get(title="third").labels == encode_labels([FlowLabel.UNTRUSTED_CONTENT])


def test_a_note_written_after_the_admission_isnt_returned(acme, keeper, call, monkeypatch):
    """Between decision and reading, a note came that brings more than was decided about."""
    late = Note(organization=acme, agent=keeper, title="late", text="x", written_by="x", labels=2)
    real = notes.search_notes

    def search(agent_id: object, query: str, *, limit: int) -> list[Note]:
        found = real(keeper.pk, query, limit=limit)
        if not Note.objects.exists():
            late.save()
        return found

    monkeypatch.setattr(notes, "search_notes", search)
    assert call("search_notes").text == "No notes yet."
    assert "late" in call("search_notes").text


def test_secrets_are_masked_in_notes(acme, keeper, call):
    workbench = factories.create_http_server(acme, "http://127.0.0.1:9/mcp")
    workbench.secrets.create(
        organization=acme, placement="header", name="X", value="hunter2-hunter2-hunter2"
    )
    call("remember", {"title": "key", "text": "It is hunter2-hunter2-hunter2."})
    assert "hunter2" not in Note.objects.get().text


# -- people --------------------------------------------------------------------------------------


def test_rest_creates_updates_and_deletes_notes(acme, helper):
    operator = rest.as_role(acme, Role.OPERATOR)
    said = {"title": "Day", "text": "Tuesday", "labels": ["untrusted_content"]}
    made = operator.post("agents/helper/notes", said)
    assert (made.status, made.json["labels"]) == (201, ["untrusted_content"])
    assert operator.post("agents/helper/notes", said).code == "name_taken"
    assert operator.get("agents/helper/notes?q=nothing").json["results"] == []
    assert len(operator.get("agents/helper/notes?q=tuesday").json["results"]) == 1
    path = f"agents/helper/notes/{made.json['id']}"
    assert operator.patch(path, {"text": "Monday"}).json["labels"] == ["untrusted_content"]
    assert operator.patch(path, {"labels": []}).json == operator.get(path).json
    assert operator.post("agents/helper/notes", {**said, "labels": ["sends_out"]}).status == 400
    other = factories.create_agent(acme, "other")
    assert operator.get(f"agents/{other.slug}/notes/{made.json['id']}").status == 404
    assert operator.delete(path).status == 204
    actions = AuditRow.objects.filter(resource_type="note").order_by("seq")
    assert [row.action for row in actions] == [
        "note_added",
        "note_changed",
        "note_changed",
        "note_removed",
    ]


def test_rest_sets_the_toolsets_of_an_agent(acme, helper):
    operator = rest.as_role(acme, Role.OPERATOR)
    assert operator.patch("agents/helper", {"builtin_tools": {"notes": {}}}).status == 200
    assert operator.get("agents/helper").json["builtin_tools"] == {"notes": {}}
    refused = operator.patch("agents/helper", {"builtin_tools": {"everything": {}}})
    assert (refused.status, refused.json["field"]) == (400, "builtin_tools")


def test_the_tab_shows_and_updates_notes(acme: object, helper: Agent):
    seat = admin_client.sit(helper.organization, Role.OPERATOR)
    page = seat.post(
        "agents_agent_notes", helper.pk, title="Day <b>", text="Tuesday", labels=["private_data"]
    )
    assert "Day &lt;b&gt;" in page
    note = Note.objects.get()
    page = admin_client.words(seat.get("agents_agent_notes", helper.pk))
    assert "private data" in page
    assert "Enable them" in page
    seat.post("agents_agent_remove_note", helper.pk, note=note.pk)
    seat.post("agents_agent_notes", helper.pk, title="a", text="b")
    seat.post("agents_agent_clear_notes", helper.pk)
    assert not Note.objects.exists()
    reader = admin_client.sit(helper.organization, Role.AUDITOR)
    reader.post("agents_agent_notes", helper.pk, status=403, title="a", text="b")
    assert not Note.objects.exists()
