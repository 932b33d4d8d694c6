"""Tasks: clients read, update and cancel their own tasks at any process."""

from collections.abc import Iterator
from typing import Any

import pytest

from agents.gateway.transports import GatewayApplication
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.client.mcp_extensions import SKILLS_EXTENSION
from mcp_servers.definition_reviews import reset_review
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, Reply, token_of
from tests.approved_server import ApprovedServer, create_approved_server
from tests.conformance_server import serve_everything
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

TASKS = "io.modelcontextprotocol/tasks"
DECLARED: dict[str, Any] = {"elicitation": {}, "extensions": {TASKS: {}}}
UNKNOWN = -32602


@pytest.fixture(scope="module")
def everything_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_everything(tmp_path_factory.mktemp("everything")) as url:
        yield url


@pytest.fixture
def published_server(everything_url: str, acme: Organization) -> ApprovedServer:
    return create_approved_server(everything_url, acme)


@pytest.fixture
def server_path(published_server: ApprovedServer) -> str:
    return published_server.paths[0]


def start_task(gateway_client: GatewayClient, path: str, tool: str, **arguments: Any) -> str:
    """Call a tool whose server creates a task, and return the task's id."""
    params = {"name": tool, "arguments": arguments}
    task = gateway_client.modern(path, "tools/call", params, capabilities=DECLARED).result
    assert (task["resultType"], task["status"]) == ("task", "working")
    task_id: str = task["taskId"]
    return task_id


def send_task_request(
    gateway_client: GatewayClient, path: str, method: str, task_id: str, **more: Any
) -> Reply:
    """Send a request about a task."""
    task_params = {"taskId": task_id, **more.pop("params", {})}
    options = {"capabilities": DECLARED, "Mcp_Name": task_id, **more}
    return gateway_client.modern(path, method, task_params, **options)


def wait_for_task(gateway_client: GatewayClient, path: str, task_id: str) -> dict[str, Any]:
    """Poll a task until it ends and return it."""

    def find_ended_task() -> dict[str, Any] | None:
        task = send_task_request(gateway_client, path, "tasks/get", task_id).result
        return task if task["status"] in ("completed", "failed", "cancelled") else None

    return eventually(find_ended_task, what="the end of the task") or {}


def test_tasks_are_declared_if_a_server_supports_them(
    server_path: str, gateway_client: GatewayClient
) -> None:
    capabilities = gateway_client.modern(server_path, "server/discover").result["capabilities"]
    assert capabilities["extensions"] == {TASKS: {}, SKILLS_EXTENSION: {}}
    handshake = gateway_client.handshake(server_path).initialization.result["capabilities"]
    assert TASKS not in handshake["extensions"]


def test_any_process_returns_a_task_and_its_end_is_recorded(
    server_path: str, gateway_client: GatewayClient
) -> None:
    task_id = start_task(gateway_client, server_path, "slow_compute", seconds=0.1, label="it")
    call = AuditRow.objects.filter(event_type="call").order_by("seq").last()
    assert call is not None
    assert (call.outcome, call.code) == ("ok", "task")
    other_gateway = GatewayApplication()
    task = wait_for_task(GatewayClient(other_gateway, gateway_client.token), server_path, task_id)
    get_runtime().call(other_gateway.stop)
    assert (task["status"], task["taskId"]) == ("completed", task_id)
    assert task["result"]["content"] == [{"type": "text", "text": "Computed it"}]
    ended = AuditRow.objects.get(action="call_task_ended")
    assert (ended.resource_id, ended.outcome) == (str(call.pk), "ok")


def test_a_tool_at_an_agent_endpoint_can_become_a_task(
    published_server: ApprovedServer, gateway_client: GatewayClient
) -> None:
    path = published_server.paths[1]
    task_id = start_task(gateway_client, path, "mcp_everything_failing_job")
    task = wait_for_task(gateway_client, path, task_id)
    assert (task["status"], task["result"]["isError"]) == ("completed", True)
    assert AuditRow.objects.get(action="call_task_ended").outcome == "error"


def test_a_task_waits_for_input_and_can_be_canceled(
    server_path: str, gateway_client: GatewayClient
) -> None:
    task_id = start_task(gateway_client, server_path, "confirm_delete", filename="a.txt")
    requests = eventually(
        lambda: send_task_request(gateway_client, server_path, "tasks/get", task_id).result.get(
            "inputRequests"
        ),
        what="request",
    )
    answers = {key: {"action": "accept", "content": {"confirm": True}} for key in requests}
    params = {"inputResponses": answers}
    result = send_task_request(
        gateway_client, server_path, "tasks/update", task_id, params=params
    ).result
    assert result["resultType"] == "complete"
    assert (
        wait_for_task(gateway_client, server_path, task_id)["result"]["content"][0]["text"]
        == "Deleted"
    )
    long_task = start_task(gateway_client, server_path, "slow_compute", seconds=60)
    assert (
        send_task_request(gateway_client, server_path, "tasks/cancel", long_task).result[
            "resultType"
        ]
        == "complete"
    )
    assert wait_for_task(gateway_client, server_path, long_task)["status"] == "cancelled"


def test_tasks_of_others_are_unknown(
    acme: Organization,
    published_server: ApprovedServer,
    server_path: str,
    gateway_client: GatewayClient,
) -> None:
    task_id = start_task(gateway_client, server_path, "slow_compute", seconds=60)
    other_client = GatewayClient(
        gateway_client._mount, token_of(factories.build_administrator(acme))
    )
    assert (
        send_task_request(other_client, server_path, "tasks/get", task_id).error["code"] == UNKNOWN
    )
    assert (
        send_task_request(gateway_client, published_server.paths[1], "tasks/get", task_id).error[
            "code"
        ]
        == UNKNOWN
    )
    forged = task_id[:-8] + "AAAAAAA="
    for guess in (forged, "1", ""):
        assert (
            send_task_request(gateway_client, server_path, "tasks/cancel", guess).error["code"]
            == UNKNOWN
        )


def test_tasks_of_a_revoked_tool_end(
    acme: Organization,
    published_server: ApprovedServer,
    server_path: str,
    gateway_client: GatewayClient,
) -> None:
    task_id = start_task(gateway_client, server_path, "slow_compute", seconds=60)
    row = published_server.server.definitions.get(name="slow_compute")
    reset_review(factories.build_administrator(acme), row)
    assert (
        send_task_request(gateway_client, server_path, "tasks/get", task_id).error["code"]
        == UNKNOWN
    )


def test_a_request_that_violates_the_extension_is_refused(
    server_path: str, gateway_client: GatewayClient
) -> None:
    task_id = start_task(gateway_client, server_path, "slow_compute", seconds=60)
    undeclared = send_task_request(
        gateway_client, server_path, "tasks/get", task_id, capabilities={}
    )
    assert (undeclared.status, undeclared.error["code"]) == (400, -32021)
    assert undeclared.error["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    mismatched = send_task_request(
        gateway_client, server_path, "tasks/get", task_id, Mcp_Name="another"
    )
    assert (mismatched.status, mismatched.error["code"]) == (400, -32020)
    removed = send_task_request(gateway_client, server_path, "tasks/result", task_id)
    assert (removed.status, removed.error["code"]) == (404, -32601)
