"""Flow labels of texts: who writes instructions, skills and requests labels whom they reach.

A client with labels writes a text, and a session or another client reads it.
"""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from agents.approvals.services import resolve_approval
from agents.builtin_tools.toolset_options import NOTES_TOOLSET
from agents.elicitations.services import answer_request
from agents.evaluation.recordings import create_recording
from agents.flow_labels.services import clear_agent_stores, list_agent_stores
from agents.models import (
    Agent,
    Approval,
    ElicitationRequest,
    Note,
    Session,
    Skill,
    Trigger,
    Workflow,
    WorkflowRun,
)
from agents.notes import NoteSpec, save_note
from agents.services import AgentSpec, update_agent
from agents.sessions import services as sessions
from agents.sessions.child_sessions import build_message_initializer, start_child
from agents.skills import SkillSpec, save_skill
from agents.workflows.runs import run_workflow
from agents.workflows.triggers import start_due_runs
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from mcp_servers.models import ErrorOutput
from tests import factories, rest
from tests.agents.gateway.organization_server.conftest import PATH, Scene
from tests.agents.labeled_stores import APPROVAL_REQUIRED, BOTH, Caller, World

pytestmark = pytest.mark.django_db(transaction=True)

SKILL = {"name": "notes", "text": "Do it.", "agents": ["helper"]}


def start(world: World, agent: Agent | None = None) -> Caller:
    """Start a session as a person without labels."""
    agent = agent or world.helper
    session = sessions.start_session(world.administrator, agent, "x")
    return Caller(world.administrator, agent, session)


def change_instructions(scene: Scene) -> Caller:
    assert scene.rest.patch("agents/helper", {"instructions": "Say it."}).status == 200
    return start(scene.world)


def change_instructions_at_the_gateway(scene: Scene) -> Caller:
    scene.client.use("update_agent", agent_id="helper", instructions="Say it.")
    return start(scene.world)


def change_instructions_of_a_running_session(scene: Scene) -> Caller:
    running = start(scene.world)
    assert scene.rest.patch("agents/helper", {"instructions": "Say it."}).status == 200
    return running


def change_instructions_of_a_finished_session(scene: Scene) -> Caller:
    session = scene.create_session()
    assert scene.rest.patch("agents/helper", {"instructions": "Say it."}).status == 200
    sessions.send_message(scene.world.administrator, session, "x")
    return scene.get_caller(session)


def describe_a_callable_agent(scene: Scene) -> Caller:
    factories.create_agent(scene.world.acme, "other")
    path, answer = "agents/helper/callable-agents", {"callable_agents": ["other"]}
    assert rest.as_administrator().put(path, answer).status == 200
    assert scene.rest.patch("agents/other", {"description": "Say it."}).status == 200
    return start(scene.world)


def instruct_a_child(scene: Scene) -> Caller:
    child_agent = factories.create_agent(scene.world.acme, "other")
    assert scene.rest.patch("agents/other", {"instructions": "Say it."}).status == 200
    parent, administrator = start(scene.world), scene.world.administrator
    assert parent.session is not None
    initialize = build_message_initializer(administrator, "x")
    start_child(
        administrator, parent.session.pk, parent.session.pk, child_agent.pk, "x", initialize
    )
    return parent


def create_a_skill(scene: Scene) -> Caller:
    assert scene.rest.post("skills", SKILL).status == 201
    return start(scene.world)


def change_a_skill(scene: Scene) -> Caller:
    save_skill(scene.world.administrator, SkillSpec(**SKILL))  # type: ignore[arg-type]
    assert scene.rest.patch("skills/notes", {"text": "Say it."}).status == 200
    return start(scene.world)


def read_a_skill_by_an_agent_token(scene: Scene) -> Caller:
    assert scene.rest.post("skills", SKILL).status == 201
    reader = scene.world.issue_token()
    assert reader.use("read_skill", {"name": "notes"}) == ""
    return reader


def write_a_workflow(scene: Scene) -> Caller:
    source = "agent: helper\nsteps:\n  - {id: look, call: read_skill, arguments: {name: x}}\n"
    assert scene.rest.post("workflows", {"name": "tell", "source": source}).status == 201
    workflow = Workflow.objects.get()
    session = run_workflow(scene.world.administrator, workflow, {}).session
    return Caller(scene.world.administrator, scene.world.helper, session)


def schedule_a_workflow(scene: Scene) -> Caller:
    factories.create_workflow(scene.world.helper)
    body = {"name": "nightly", "kind": "schedule", "every_s": 3600, "inputs": {}}
    assert scene.rest.post("workflows/tell/triggers", body).status == 201
    Trigger.objects.update(next_at=timezone.now())
    start_due_runs()
    return Caller(scene.world.administrator, scene.world.helper, WorkflowRun.objects.get().session)


def deny_with_a_reason(scene: Scene) -> Caller:
    session, approval = factories.create_waiting_session(scene.world.helper)
    resolve_approval(scene.program.principal, approval, "deny", "Say it.")
    return scene.get_caller(session)


def answer_an_elicitation(scene: Scene) -> Caller:
    session = scene.create_session()
    elicitation = factories.create_elicitation(session, scene.world.records)
    ElicitationRequest.objects.update(
        requested_by_kind="token", requested_by_id=scene.program.principal.id
    )
    elicitation.refresh_from_db()
    answer_request(scene.program.principal, elicitation, "accept", {"region": "eu"})
    return scene.get_caller(session)


def request_access(scene: Scene) -> Caller:
    body = {"kind": "agent", "target": "Writer", "reason": "Say it."}
    assert scene.rest.post("access-requests", body).status == 201
    reader, text = scene.world.issue_organization_token()
    assert rest.RestClient(text).get("access-requests").json["results"]
    return reader


def answer_an_access_request(scene: Scene) -> Caller:
    wish = factories.create_access_request(scene.world.acme)
    body = {"answer": "deny", "message": "Say it."}
    assert scene.rest.post(f"access-requests/{wish.pk}/answer", body).status == 200
    reader, text = scene.world.issue_organization_token()
    assert rest.RestClient(text).get(f"access-requests/{wish.pk}").json["message"]
    return reader


WRITES: tuple[Callable[[Scene], Caller], ...] = (
    *(change_instructions, change_instructions_at_the_gateway),
    *(change_instructions_of_a_running_session, change_instructions_of_a_finished_session),
    *(describe_a_callable_agent, instruct_a_child, create_a_skill, change_a_skill),
    *(read_a_skill_by_an_agent_token, write_a_workflow, schedule_a_workflow),
    *(deny_with_a_reason, answer_an_elicitation, request_access, answer_an_access_request),
)


@pytest.mark.parametrize("way", WRITES, ids=lambda way: way.__name__)
def test_a_text_of_a_client_with_labels_labels_its_readers(
    scene: Scene, way: Callable[[Scene], Caller]
) -> None:
    scene.program.read_labeled_data()
    assert way(scene).try_to_send() == APPROVAL_REQUIRED


@pytest.mark.parametrize("way", WRITES, ids=lambda way: way.__name__)
def test_a_text_of_a_client_without_labels_labels_nobody(
    scene: Scene, way: Callable[[Scene], Caller]
) -> None:
    assert way(scene).try_to_send() == ""


class Other:
    """Another client of the organization, without labels."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.caller, self.text = scene.world.issue_organization_token()
        self.rest = rest.RestClient(self.text)

    def get(self, path: str) -> None:
        assert self.rest.get(path).status == 200, path

    def list(self, method: str) -> None:
        assert self.scene.gateway_client.modern(PATH, method, token=self.text).result

    def ask(self, method: str, **params: Any) -> None:
        assert self.scene.gateway_client.modern(PATH, method, params, token=self.text).result


Read = Callable[[Other], Any]
TEXT_READS: dict[str, Read] = {
    "an agent": lambda reader: reader.get("agents/helper"),
    "agents": lambda reader: reader.get("agents"),
    "an empty change": lambda reader: reader.rest.patch("agents/helper", {}),
    "an agent as a resource": lambda reader: reader.ask(
        "resources/read", uri="bonobot://agents/helper"
    ),
    "tools": lambda reader: reader.list("tools/list"),
    "resources": lambda reader: reader.list("resources/list"),
    "a skill": lambda reader: reader.get("skills/notes"),
    "skills": lambda reader: reader.get("skills"),
    "versions of a skill": lambda reader: reader.get("skills/notes/versions"),
    "a rendered skill": lambda reader: reader.rest.post("skills/notes/render", {}),
    "a skill as a prompt": lambda reader: reader.ask("prompts/get", name="notes"),
    "a skill as a resource": lambda reader: reader.ask(
        "resources/read", uri="skill://notes/SKILL.md"
    ),
    "prompts": lambda reader: reader.list("prompts/list"),
    "a note": lambda reader: reader.get(f"agents/helper/notes/{Note.objects.get().pk}"),
    "notes": lambda reader: reader.get("agents/helper/notes"),
    "a workflow": lambda reader: reader.get("workflows/tell"),
    "versions of a workflow": lambda reader: reader.get("workflows/tell/versions"),
    "triggers": lambda reader: reader.get("workflows/tell/triggers"),
}


def write_texts(scene: Scene) -> None:
    """Write a text of each kind as the client."""
    toolsets = {NOTES_TOOLSET: {}}
    spec = AgentSpec(name="Helper", instructions="Say it.", builtin_tools=toolsets)
    update_agent(scene.program.principal, scene.world.helper, spec)
    save_skill(scene.program.principal, SkillSpec(**SKILL))  # type: ignore[arg-type]
    save_note(scene.program.principal, scene.world.helper, NoteSpec("x", "Say it."))
    source = "agent: helper\nsteps:\n  - {id: look, call: read_skill, arguments: {name: x}}\n"
    assert scene.rest.post("workflows", {"name": "tell", "source": source}).status == 201
    body = {"name": "nightly", "kind": "schedule", "every_s": 3600, "inputs": {}}
    assert scene.rest.post("workflows/tell/triggers", body).status == 201


@pytest.mark.parametrize("way", TEXT_READS)
def test_a_client_gets_the_labels_of_a_text_it_reads(scene: Scene, way: str) -> None:
    scene.program.read_labeled_data()
    write_texts(scene)
    reader = Other(scene)
    scene.world.clear_caller_labels()
    assert reader.caller.try_to_send() == ""
    TEXT_READS[way](reader)
    assert reader.caller.try_to_send() == APPROVAL_REQUIRED
    TEXT_READS[way](reader)
    assert AuditRow.objects.filter(action="text_labels_read").count() == 1


def test_a_client_gets_no_labels_of_texts_without_labels(scene: Scene) -> None:
    write_texts(scene)
    reader = Other(scene)
    for way, read in TEXT_READS.items():
        read(reader)
        assert reader.caller.try_to_send() == "", way


SESSION_READS: dict[str, Read] = {
    "sessions": lambda reader: reader.get("sessions"),
    "sessions of an agent": lambda reader: reader.get("agents/helper/sessions"),
    "an approval": lambda reader: reader.get(f"approvals/{Approval.objects.get().pk}"),
    "approvals": lambda reader: reader.get("approvals"),
    "questions": lambda reader: reader.get("elicitation-requests"),
    "recordings": lambda reader: reader.get("recordings"),
    "the audit log": lambda reader: reader.get("audit"),
    "the exported audit log": lambda reader: reader.get("audit/export"),
    "sessions as a tool": lambda reader: reader.ask(
        "tools/call", name="list_sessions", arguments={}
    ),
}


@pytest.mark.parametrize("way", SESSION_READS)
def test_a_client_gets_the_labels_of_a_session_whose_content_it_reads(
    scene: Scene, way: str
) -> None:
    session = scene.create_session()
    create_recording(scene.world.administrator, session)
    factories.create_approval(scene.world.helper, session)
    factories.create_elicitation(session, scene.world.records)
    reader = Other(scene)
    SESSION_READS[way](reader)
    assert reader.caller.try_to_send() == ""
    scene.get_caller(session).read_labeled_data()
    SESSION_READS[way](reader)
    assert reader.caller.try_to_send() == APPROVAL_REQUIRED


def test_a_person_clears_the_labels_of_a_text_by_writing_another(scene: Scene) -> None:
    scene.program.read_labeled_data()
    write_texts(scene)
    helper, administrator = scene.world.helper, scene.world.administrator
    save_skill(administrator, SkillSpec(name="notes", text="Rewritten."), Skill.objects.get())
    update_agent(administrator, helper, AgentSpec(name="Helper", description="Described."))
    assert start(scene.world).try_to_send() == APPROVAL_REQUIRED
    update_agent(administrator, helper, AgentSpec(name="Helper", instructions="Rewritten."))
    assert list_agent_stores(helper)[2].labels == ()
    Session.objects.all().delete()
    assert start(scene.world).try_to_send() == ""


def test_a_reviewer_clears_the_labels_of_instructions(scene: Scene) -> None:
    scene.program.read_labeled_data()
    assert scene.rest.patch("agents/helper", {"instructions": "Say it."}).status == 200
    assert list_agent_stores(scene.world.helper)[2].labels == BOTH
    clear_agent_stores(factories.create_member(scene.world.acme, Role.REVIEWER), scene.world.helper)
    assert start(scene.world).try_to_send() == ""


def test_a_client_gets_the_labels_of_a_server_whose_error_output_it_reads(scene: Scene) -> None:
    server, reader = scene.world.records, Other(scene)
    ErrorOutput.objects.create(
        id=uuid4(), organization=scene.world.acme, server=server, text="Ann was here."
    )
    reader.get(f"mcp-servers/{server.pk}")
    assert reader.caller.try_to_send() == ""
    scene.world.start_session().read_labeled_data().use("mcp_records_create_record")
    reader.get(f"mcp-servers/{server.pk}")
    assert reader.caller.try_to_send() == APPROVAL_REQUIRED
