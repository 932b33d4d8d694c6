"""Flow labels between sessions and clients: messages add them, and readers get them.

The other ways to launder labels are in `tests/agents/test_flow_label_laundering.py`.
"""

from collections.abc import AsyncIterator, Callable

import pytest

from agents.api.sessions import stream_events
from agents.flow_labels.services import list_session_labels
from agents.gateway.organization_server.resources import build_uri
from agents.models import Session, WorkflowRun
from agents.sessions import services as sessions
from agents.workflows.runs import run_workflow
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow, FlowCell
from tests import factories, rest
from tests.agents.gateway.organization_server.conftest import PATH, Scene
from tests.agents.labeled_stores import APPROVAL_REQUIRED, BOTH

pytestmark = pytest.mark.django_db(transaction=True)


def start(scene: Scene) -> Session:
    return sessions.start_session(scene.program.principal, scene.world.helper, "x")


def send(scene: Scene) -> Session:
    session = scene.create_session()
    sessions.send_message(scene.program.principal, session, "x")
    return session


def send_again(scene: Scene) -> Session:
    session = scene.create_session()
    sessions.resend_message(scene.program.principal, session)
    return session


def start_by_rest(scene: Scene) -> Session:
    answer = scene.rest.post("agents/helper/sessions", {"message": "x"})
    return Session.objects.get(pk=answer.json["id"])


def send_by_rest(scene: Scene) -> Session:
    session = scene.create_session()
    assert scene.rest.post(f"sessions/{session.pk}/messages", {"message": "x"}).status == 202
    return session


def chat(scene: Scene) -> Session:
    status = scene.client.use("helper_chat", message="x", wait_s=0)
    return Session.objects.get(pk=status["session_id"])


def chat_on(scene: Scene) -> Session:
    session = scene.create_session()
    scene.client.use("helper_chat", message="x", session_id=str(session.pk), wait_s=0)
    return session


def start_a_workflow(scene: Scene) -> Session:
    workflow = factories.create_workflow(scene.world.helper)
    return run_workflow(scene.program.principal, workflow, {}).session


def start_a_workflow_by_rest(scene: Scene) -> Session:
    workflow = factories.create_workflow(scene.world.helper)
    answer = scene.rest.post(f"workflows/{workflow.name}/runs", {"inputs": {}})
    return WorkflowRun.objects.get(pk=answer.json["id"]).session


WRITES: tuple[Callable[[Scene], Session], ...] = (
    *(start, send, send_again, start_by_rest, send_by_rest, chat, chat_on),
    *(start_a_workflow, start_a_workflow_by_rest),
)


@pytest.mark.parametrize("way", WRITES, ids=lambda way: way.__name__)
def test_a_session_gets_the_labels_of_the_client_that_writes_to_it(
    scene: Scene, way: Callable[[Scene], Session]
) -> None:
    scene.program.read_labeled_data()
    session = way(scene)
    assert scene.get_caller(session).try_to_send() == APPROVAL_REQUIRED
    assert [label.label for label in list_session_labels(session)] == [*BOTH]
    row = AuditRow.objects.get(action="session_labeled")
    assert (row.actor_id, row.resource_id) == (scene.program.principal.id, str(session.pk))


@pytest.mark.parametrize("way", WRITES, ids=lambda way: way.__name__)
def test_a_client_without_labels_adds_none_to_a_session(
    scene: Scene, way: Callable[[Scene], Session]
) -> None:
    assert scene.get_caller(way(scene)).try_to_send() == ""
    assert not AuditRow.objects.filter(action="session_labeled").exists()


def read_messages(scene: Scene, session: Session) -> None:
    scene.client.use("session_messages", session_id=str(session.pk))


def read_status(scene: Scene, session: Session) -> None:
    scene.client.use("session_status", session_id=str(session.pk))


def wait_for_rest(scene: Scene, session: Session) -> None:
    scene.client.use("session_status", session_id=str(session.pk), wait_s=5)


def read_resource(scene: Scene, session: Session) -> None:
    params = {"uri": build_uri("sessions", session.pk)}
    assert scene.gateway_client.modern(PATH, "resources/read", params, token=scene.text).result[
        "contents"
    ]


def read_by_rest(scene: Scene, session: Session) -> None:
    assert scene.rest.get(f"sessions/{session.pk}").status == 200


def export(scene: Scene, session: Session) -> None:
    assert scene.rest.get(f"sessions/{session.pk}/export?as=json").status == 200


def follow_events(scene: Scene, session: Session) -> None:
    async def read(events: AsyncIterator[bytes]) -> list[bytes]:
        return [new_world async for new_world in events]

    assert get_runtime().call(read, stream_events(session.pk, 0, scene.program.principal))


def read_a_run(scene: Scene, session: Session) -> None:
    run = WorkflowRun.objects.get(session=session)
    assert scene.rest.get(f"workflow-runs/{run.pk}").status == 200


def list_runs(scene: Scene, session: Session) -> None:
    run = WorkflowRun.objects.get(session=session)
    assert scene.rest.get(f"workflows/{run.name}/runs").status == 200


Read = Callable[[Scene, Session], None]
READS: tuple[Read, ...] = (
    *(read_messages, read_status, wait_for_rest, read_resource, read_by_rest, export),
    *(follow_events, read_a_run, list_runs),
)


def create_session_to_read(scene: Scene, way: Read) -> Session:
    """Create a resting session; one of a workflow run for readers of runs."""
    if way in (read_a_run, list_runs):
        workflow = factories.create_workflow(scene.world.helper)
        session = run_workflow(scene.world.administrator, workflow, {}).session
        Session.objects.filter(pk=session.pk).update(status=Session.Status.DONE)
        return session
    return scene.create_session()


@pytest.mark.parametrize("way", READS, ids=lambda way: way.__name__)
def test_a_client_gets_the_labels_of_a_session_it_reads(scene: Scene, way: Read) -> None:
    session = create_session_to_read(scene, way)
    way(scene, session)
    assert scene.program.try_to_send() == ""
    scene.get_caller(session).read_labeled_data()
    way(scene, session)
    assert scene.program.try_to_send() == APPROVAL_REQUIRED
    way(scene, session)
    assert AuditRow.objects.filter(action="session_labels_read").count() == 1
    # What the client writes next has these labels.
    assert scene.get_caller(start(scene)).try_to_send() == APPROVAL_REQUIRED


def test_reading_in_the_admin_and_only_writing_add_no_labels(scene: Scene) -> None:
    session = scene.create_session()
    scene.get_caller(session).read_labeled_data()
    assert rest.as_administrator().get(f"sessions/{session.pk}").status == 200
    sessions.start_session(scene.world.administrator, scene.world.helper, "x")
    assert scene.rest.post(f"sessions/{session.pk}/messages", {"message": "x"}).status == 202
    assert FlowCell.objects.exclude(labels=0).count() == 1
    assert scene.program.try_to_send() == ""
