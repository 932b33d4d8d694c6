"""Flow labels of the texts that errors quote, at the gateway and in sessions.

`tests/bonobot/test_api_text_labels.py` has those of REST.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agents.flow_labels.error_labels import label_response_reader, label_session_with_error
from agents.models import Note
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.problems import Conflict
from bonobot.ledger.models import FlowCell
from mcp_servers.flow_labels import build_flow_key
from mcp_servers.flow_labels.token_labels import HELD_LABELS, load_token_labels
from tests import factories
from tests.agents.gateway.organization_server.conftest import Client, Scene
from tests.agents.labeled_stores import APPROVAL_REQUIRED
from tests.inventory import create_everything

pytestmark = pytest.mark.django_db(transaction=True)

SUFFIX = "zqword"
STRINGS = (f"helper{SUFFIX}", f"tell{SUFFIX}", f"spare{SUFFIX}", "nobody")


def build_arguments(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """Return arguments of a tool: `text` for each string, 1 for each number."""
    values: dict[str, Any] = {"string": text, "integer": 1, "number": 1, "boolean": False}
    values |= {"array": [], "object": {}}
    kinds = {name: str(spec.get("type")) for name, spec in schema.get("properties", {}).items()}
    return {name: values[kind] for name, kind in kinds.items() if kind in values}


def list_calls(client: Client) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, tool in client.tools().items():
        yield name, {}
        for text in STRINGS:
            yield name, build_arguments(tool["inputSchema"], text)


@pytest.mark.whole
def test_a_client_gets_the_labels_of_each_name_in_a_response_of_the_organizations_tools(
    scene: Scene,
) -> None:
    acme = scene.world.acme
    ids = {row_id for row_id in create_everything(acme, SUFFIX).values() if len(row_id) == 36}
    for row_id in ids:
        key = build_flow_key(acme.pk, "text", row_id)
        FlowCell.objects.create(key=key, organization_id=acme.pk, labels=HELD_LABELS)
    quoting = set()
    for name, arguments in list_calls(scene.client):
        _token, text = create_token(scene.world.administrator, name="x", role=Role.OWNER)
        reply = Client(scene.gateway_client, text).call(name, arguments)
        result = reply.message.get("result", {})
        if SUFFIX in str(reply.message).lower() and result.get("isError", True):
            quoting.add(name)
            assert load_token_labels(acme.pk, str(_token.pk)) == HELD_LABELS, (name, reply)
    assert len(quoting) > 5


def test_a_session_gets_the_labels_of_a_name_in_the_refusal_of_a_call(scene: Scene) -> None:
    caller = scene.world.start_session()
    assert caller.session is not None
    other_agent = factories.create_agent(scene.world.acme, "other")
    scene.program.read_labeled_data()
    assert scene.rest.patch("agents/other", {"name": "Ann was here"}).status == 200
    scene.world.clear_caller_labels()
    actor = scene.world.administrator.actor
    label_session_with_error(actor, caller.session, Conflict("The agent is busy."))
    assert caller.try_to_send() == ""
    other_agent.refresh_from_db()
    label_session_with_error(
        actor, caller.session, Conflict(f"The agent {other_agent.name!r} is busy.")
    )
    assert caller.try_to_send() == APPROVAL_REQUIRED


# How a message may change a name.
QUOTES = {
    "unchanged": lambda name: name,
    "with escapes": repr,
    "in capitals": str.upper,
    "in code": lambda name: f"`{name}`",
    "shortened": lambda name: f"{name[:60]}…",
    "as a key": lambda name: {name: 1},
    "nested": lambda name: [{"errors": [{"detail": name}]}],
}


@pytest.mark.parametrize("quote", QUOTES.values(), ids=QUOTES)
def test_a_name_is_recognized_in_a_message(scene: Scene, quote: Callable[[str], Any]) -> None:
    name = "Ann “was” here \\ and wrote a name that is longer than a message shows, in Zürich"
    factories.create_agent(scene.world.acme, "other")
    scene.program.read_labeled_data()
    assert scene.rest.patch("agents/other", {"name": name}).status == 200
    scene.world.clear_caller_labels()
    reader, _text = scene.world.issue_organization_token()
    label_response_reader(reader.principal, {"detail": "Something else is in use."})
    assert reader.try_to_send() == ""
    label_response_reader(reader.principal, {"detail": quote(name)})
    assert reader.try_to_send() == APPROVAL_REQUIRED


@pytest.mark.parametrize(
    ("unit", "limit", "shown"), [("calls", 4_711, "4,711"), ("microusd", 47_110_000, "$47.11")]
)
def test_the_limit_of_a_budget_is_recognized_in_a_message(
    scene: Scene, unit: str, limit: int, shown: str
) -> None:
    budgets = {"budgets": [{"unit": unit, "period": "day", "limit": limit}]}
    scene.program.read_labeled_data()
    assert scene.rest.put("agents/helper/budgets", budgets).status == 200
    scene.world.clear_caller_labels()
    reader, _text = scene.world.issue_organization_token()
    label_response_reader(reader.principal, {"detail": f"The limit is {shown} per day."})
    assert reader.try_to_send() == APPROVAL_REQUIRED


def test_a_labeled_note_is_recognized_in_a_message(scene: Scene) -> None:
    Note.objects.create(
        organization=scene.world.acme,
        agent=scene.world.helper,
        title="Ann was here",
        text="x",
        labels=HELD_LABELS,
    )
    reader, _text = scene.world.issue_organization_token()
    label_response_reader(reader.principal, {"detail": "The note Ann was here has changed."})
    assert reader.try_to_send() == APPROVAL_REQUIRED
