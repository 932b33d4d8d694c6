"""Tasks: a client asks for what a call has come to, of any process, and for nobody else's."""

from collections.abc import Iterator
from typing import Any

import pytest

from agents.gateway.transports import GatewayApplication
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.definition_reviews import reset_review
from tests import factories
from tests.agents.gateway.conftest import Reply, Wire, token_of
from tests.approved_server import Published, publish
from tests.conformance_server import everything
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

TASKS = "io.modelcontextprotocol/tasks"
DECLARED: dict[str, Any] = {"elicitation": {}, "extensions": {TASKS: {}}}
UNKNOWN = -32602


@pytest.fixture(scope="module")
def everything_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with everything(tmp_path_factory.mktemp("everything")) as url:
        yield url


@pytest.fixture
def published(everything_url: str, acme: Organization) -> Published:
    return publish(everything_url, acme)


@pytest.fixture
def there(published: Published) -> str:
    return published.paths[0]


def begin(wire: Wire, path: str, tool: str, **arguments: Any) -> str:
    """Call a tool whose server makes a task of it; returns the task's id."""
    params = {"name": tool, "arguments": arguments}
    begun = wire.modern(path, "tools/call", params, capabilities=DECLARED).result
    assert (begun["resultType"], begun["status"]) == ("task", "working")
    number: str = begun["taskId"]
    return number


def about(wire: Wire, path: str, method: str, number: str, **more: Any) -> Reply:
    """Ask about a task."""
    said = {"taskId": number, **more.pop("params", {})}
    sent = {"capabilities": DECLARED, "Mcp_Name": number, **more}
    return wire.modern(path, method, said, **sent)


def finished(wire: Wire, path: str, number: str) -> dict[str, Any]:
    """Look at a task until it is over."""

    def over() -> dict[str, Any] | None:
        found = about(wire, path, "tasks/get", number).result
        return found if found["status"] in ("completed", "failed", "cancelled") else None

    return eventually(over, what="the end of the task") or {}


def test_tasks_are_declared_if_a_server_supports_them(there: str, wire: Wire) -> None:
    found = wire.modern(there, "server/discover").result["capabilities"]
    assert found["extensions"] == {TASKS: {}}
    assert "extensions" not in wire.handshake(there).opened.result["capabilities"]


def test_any_process_returns_a_task_and_its_end_is_recorded(there: str, wire: Wire) -> None:
    number = begin(wire, there, "slow_compute", seconds=0.1, label="it")
    call = AuditRow.objects.filter(event_type="call").order_by("seq").last()
    assert call is not None
    assert (call.outcome, call.code) == ("ok", "task")
    another = GatewayApplication()
    found = finished(Wire(another, wire.token), there, number)
    get_runtime().call(another.stop)
    assert (found["status"], found["taskId"]) == ("completed", number)
    assert found["result"]["content"] == [{"type": "text", "text": "Computed it"}]
    ended = AuditRow.objects.get(action="call_task_ended")
    assert (ended.resource_id, ended.outcome) == (str(call.pk), "ok")


def test_a_tool_at_an_agent_endpoint_can_become_a_task(published: Published, wire: Wire) -> None:
    path = published.paths[1]
    number = begin(wire, path, "mcp_everything_failing_job")
    found = finished(wire, path, number)
    assert (found["status"], found["result"]["isError"]) == ("completed", True)
    assert AuditRow.objects.get(action="call_task_ended").outcome == "error"


def test_a_task_waits_for_input_and_can_be_canceled(there: str, wire: Wire) -> None:
    number = begin(wire, there, "confirm_delete", filename="a.txt")
    waits = eventually(
        lambda: about(wire, there, "tasks/get", number).result.get("inputRequests"),
        what="request",
    )
    answers = {key: {"action": "accept", "content": {"confirm": True}} for key in waits}
    said = {"inputResponses": answers}
    told = about(wire, there, "tasks/update", number, params=said).result
    assert told["resultType"] == "complete"
    assert finished(wire, there, number)["result"]["content"][0]["text"] == "Deleted"
    long = begin(wire, there, "slow_compute", seconds=60)
    assert about(wire, there, "tasks/cancel", long).result["resultType"] == "complete"
    assert finished(wire, there, long)["status"] == "cancelled"


def test_tasks_of_others_are_unknown(
    acme: Organization, published: Published, there: str, wire: Wire
) -> None:
    number = begin(wire, there, "slow_compute", seconds=60)
    other = Wire(wire._mount, token_of(factories.build_administrator(acme)))
    assert about(other, there, "tasks/get", number).error["code"] == UNKNOWN
    assert about(wire, published.paths[1], "tasks/get", number).error["code"] == UNKNOWN
    forged = number[:-8] + "AAAAAAA="
    for guess in (forged, "1", ""):
        assert about(wire, there, "tasks/cancel", guess).error["code"] == UNKNOWN


def test_tasks_of_a_revoked_tool_end(
    acme: Organization, published: Published, there: str, wire: Wire
) -> None:
    number = begin(wire, there, "slow_compute", seconds=60)
    row = published.server.definitions.get(name="slow_compute")
    reset_review(factories.build_administrator(acme), row)
    assert about(wire, there, "tasks/get", number).error["code"] == UNKNOWN


def test_a_request_that_violates_the_extension_is_refused(there: str, wire: Wire) -> None:
    number = begin(wire, there, "slow_compute", seconds=60)
    silent = about(wire, there, "tasks/get", number, capabilities={})
    assert (silent.status, silent.error["code"]) == (400, -32021)
    assert silent.error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    elsewhere = about(wire, there, "tasks/get", number, Mcp_Name="another")
    assert (elsewhere.status, elsewhere.error["code"]) == (400, -32020)
    removed = about(wire, there, "tasks/result", number)
    assert (removed.status, removed.error["code"]) == (404, -32601)
