"""More routes by which a client with labels could pass text to one without.

Texts that aren't names: messages of approvals, patterns of attachments, declared operations,
instructions of replays, titles of sessions, and repeated responses.
"""

import json
from collections.abc import Callable

import pytest

from agents.evaluation.recordings import create_recording
from agents.models import Approval
from tests import factories, rest
from tests.agents.gateway.organization_server.conftest import Scene
from tests.agents.labeled_stores import APPROVAL_REQUIRED

pytestmark = pytest.mark.django_db(transaction=True)

TEXT = "Ann was here"
OPERATION = {"name": "get_thing", "description": TEXT, "path": "/things"}
DECLARED = {
    "name": "Rest",
    "transport_type": "openapi",
    "endpoint_config": {
        "url": "https://a.example.com",
        "declared": [{"name": "get_other", "description": "x", "path": "/other"}],
    },
}


def approve_with_message(scene: Scene) -> str:
    factories.create_approval(scene.world.helper)
    path = f"approvals/{Approval.objects.get().pk}"
    scene.program.read_labeled_data()
    answer = {"answer": "approve", "message": TEXT}
    assert scene.rest.post(f"{path}/answer", answer).status == 200
    return path


def set_patterns_of_an_attachment(scene: Scene) -> str:
    path = f"agents/helper/mcp-servers/{scene.world.records.pk}"
    scene.program.read_labeled_data()
    response = scene.rest.patch(path, {"denied_tools": ["ann_was_here"]})
    assert response.status == 200, response
    return path


def attach_with_patterns(scene: Scene) -> str:
    factories.create_agent(scene.world.acme, "other")
    scene.program.read_labeled_data()
    body = {"server_id": str(scene.world.records.pk), "denied_tools": ["ann_was_here"]}
    response = scene.rest.post("agents/other/mcp-servers", body)
    assert response.status in (200, 201), response
    return f"agents/other/mcp-servers/{scene.world.records.pk}"


def declare_operation(scene: Scene) -> str:
    created = rest.as_administrator().post("mcp-servers", DECLARED)
    assert created.status == 201, created
    path = f"mcp-servers/{created.json['id']}"
    scene.program.read_labeled_data()
    response = scene.rest.post(f"{path}/operations", OPERATION)
    assert response.status in (200, 201), response
    return f"{path}/operations"


def replay_with_instructions(scene: Scene) -> str:
    recording = create_recording(scene.world.administrator, scene.create_session())
    path = f"recordings/{recording.pk}/replays"
    scene.program.read_labeled_data()
    response = scene.rest.post(path, {"instructions": TEXT})
    assert response.status in (200, 201, 202), response
    return path


def start_a_session(scene: Scene) -> str:
    scene.program.read_labeled_data()
    response = scene.rest.post("agents/helper/sessions", {"message": TEXT})
    assert response.status in (200, 201, 202), response
    return "sessions"


def attach_a_skill(scene: Scene) -> str:
    scene.program.read_labeled_data()
    assert scene.rest.post("skills", {"name": "ann-was-here", "text": TEXT}).status == 201
    assert rest.as_administrator().patch("agents/helper", {"skills": ["ann-was-here"]}).status < 500
    return "skills/ann-was-here/versions"


def write_a_note(scene: Scene) -> str:
    scene.program.read_labeled_data()
    body = {"title": TEXT, "text": "x"}
    assert scene.rest.post("agents/helper/notes", body).status == 201
    return "agents/helper/notes"


def import_a_server(scene: Scene) -> str:
    scene.program.read_labeled_data()
    config = {"mcpServers": {"ann-was-here": {"url": "https://a.example.com/mcp"}}}
    response = scene.rest.post("mcp-servers/import", {"text": json.dumps(config), "apply": True})
    assert response.status in (200, 201, 202), response
    return "mcp-servers"


ROUTES: dict[str, Callable[[Scene], str]] = {
    route.__name__: route
    for route in (
        approve_with_message,
        set_patterns_of_an_attachment,
        attach_with_patterns,
        declare_operation,
        replay_with_instructions,
        start_a_session,
        attach_a_skill,
        write_a_note,
        import_a_server,
    )
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_client_that_reads_the_text_holds_its_labels(scene: Scene, route: str) -> None:
    path = ROUTES[route](scene)
    reader, text = scene.world.issue_organization_token()
    scene.world.clear_caller_labels()
    assert reader.try_to_send() == ""
    response = rest.RestClient(text).get(path)
    assert response.status == 200, response
    folded = response.text.lower().replace("_", " ").replace("-", " ")
    assert TEXT.lower() in folded, response
    assert reader.try_to_send() == APPROVAL_REQUIRED


def test_a_client_that_reads_the_tools_of_a_server_holds_the_labels_of_its_configuration(
    scene: Scene,
) -> None:
    """Declared operations are a part of it."""
    path = f"mcp-servers/{scene.world.records.pk}"
    scene.program.read_labeled_data()
    assert scene.rest.patch(path, {"description": TEXT}).status == 200
    reader, text = scene.world.issue_organization_token()
    scene.world.clear_caller_labels()
    assert rest.RestClient(text).get(f"{path}/tools").status == 200
    assert reader.try_to_send() == APPROVAL_REQUIRED


def test_a_repeated_response_has_the_labels_of_its_text(scene: Scene) -> None:
    """The labels of the client were cleared between the request and its repetition."""
    scene.program.read_labeled_data()
    assert scene.rest.patch("agents/helper", {"name": TEXT}).status == 200
    reader, text = scene.world.issue_organization_token()
    client = rest.RestClient(text)
    for _ in range(2):
        response = client.send("PATCH", "agents/helper", {"description": "x"}, Idempotency_Key="k1")
        assert response.status == 200, response
        assert TEXT in response.text
        assert reader.try_to_send() == APPROVAL_REQUIRED
        scene.world.clear_caller_labels(reader)
