"""Calls that need approval, as tasks: deferred, approved or denied, and run once by any process."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from agents.approvals.services import expire_overdue, resolve_approval
from agents.calls import deferred_calls
from agents.gateway import mcp_tasks
from agents.gateway.transports import GatewayApplication
from agents.models import Agent, Approval, DeferredCall
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.models import Organization
from bonobot.core.problems import Conflict, ServiceUnavailable
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.models import Definition, Server
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, Reply, token_of
from tests.agents.gateway.test_mcp_tasks import DECLARED, TASKS, UNKNOWN, send_task_request
from tests.agents.gateway.upstream_server import ABLE, ANSWERS, Upstream, attach_upstream
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
COUNT = {"name": "mcp_workshop_count", "arguments": {"what": "once"}}
SHOWS: dict[str, Any] = {"elicitation": {"url": {}}, "extensions": {TASKS: {}}}
KEY = "bonobot-approval"

Resolve = Callable[..., Approval]


@pytest.fixture
def ask_policy(acme: Organization, helper: Agent, workshop: Server) -> None:
    policy = PolicySpec("all", ask=("mcp_workshop_count",))
    set_policy(factories.build_administrator(acme), helper, policy)


@pytest.fixture
def task_id(ask_policy: None, gateway_client: GatewayClient) -> str:
    """The id of the task of a deferred call."""
    task = gateway_client.modern(AGENT, "tools/call", COUNT, capabilities=DECLARED).result
    assert (task["resultType"], task["status"]) == ("task", "working")
    assert task["ttlMs"] > timedelta(hours=24).total_seconds() * 1_000
    number: str = task["taskId"]
    return number


@pytest.fixture
def resolve(acme: Organization) -> Resolve:
    """Return a function that approves or denies the pending approval."""

    def resolve_pending(decision: str, **more: Any) -> Approval:
        approval = Approval.objects.pending().get()
        return resolve_approval(factories.build_administrator(acme), approval, decision, **more)

    return resolve_pending


@pytest.fixture
def second_gateway(gateway_client: GatewayClient) -> Iterator[GatewayClient]:
    """The same client at another process, which shares only the database."""
    mount = GatewayApplication()
    yield GatewayClient(mount, gateway_client.token)
    get_runtime().call(mount.stop)


def get_task(gateway_client: GatewayClient, task_id: str, **more: Any) -> dict[str, Any]:
    return send_task_request(gateway_client, AGENT, "tasks/get", task_id, **more).result


def wait_for_task(gateway_client: GatewayClient, task_id: str, path: str = AGENT) -> dict[str, Any]:
    """Poll the task until it ends and return it."""

    def find_ended_task() -> dict[str, Any] | None:
        task = send_task_request(gateway_client, path, "tasks/get", task_id).result
        return task if task["status"] in ("completed", "failed", "cancelled") else None

    return eventually(find_ended_task, what="the end of the task") or {}


def get_code(task: dict[str, Any]) -> str:
    assert (task["status"], task["result"]["isError"]) == ("completed", True)
    return str(task["result"]["_meta"]["bonobot/problem"]["code"])


def test_any_process_runs_the_call_once_after_its_approval(
    task_id: str,
    gateway_client: GatewayClient,
    second_gateway: GatewayClient,
    resolve: Resolve,
    effects: Any,
) -> None:
    task = get_task(gateway_client, task_id)
    path = f"/{Approval.objects.get().pk}/change/"
    assert (task["status"], path in task["statusMessage"]) == ("working", True)
    assert not effects.read_text()
    resolve("approve")
    ended = wait_for_task(second_gateway, task_id)
    assert ended["result"]["content"][0]["text"]
    assert (wait_for_task(gateway_client, task_id), effects.read_text()) == (ended, "once\n")
    (call,) = AuditRow.objects.filter(event_type="call", outcome="ok")
    assert (call.pk, call.actor_label) == (DeferredCall.objects.get().call_id, "tests")


def test_a_client_with_url_elicitation_is_asked_once(
    task_id: str, gateway_client: GatewayClient, resolve: Resolve
) -> None:
    task = get_task(gateway_client, task_id, capabilities=SHOWS)
    elicitation = task["inputRequests"][KEY]
    assert (task["status"], elicitation["method"]) == ("input_required", "elicitation/create")
    assert elicitation["params"]["url"].endswith(f"/{Approval.objects.get().pk}/change/")
    accepted = {"inputResponses": {KEY: {"action": "accept"}}}
    send_task_request(gateway_client, AGENT, "tasks/update", task_id, params=accepted)
    assert get_task(gateway_client, task_id, capabilities=SHOWS)["status"] == "working"
    resolve("approve")
    assert wait_for_task(gateway_client, task_id)["status"] == "completed"


def list_ended_calls() -> list[str]:
    """Return the codes of the calls that the audit log counts."""
    calls = AuditRow.objects.filter(event_type="call").exclude(code="approval_required")
    return list(calls.values_list("code", flat=True))


def test_a_denial_is_the_result_of_the_task(
    task_id: str, gateway_client: GatewayClient, resolve: Resolve, effects: Any
) -> None:
    resolve("deny", message="Not today.")
    ended = wait_for_task(gateway_client, task_id)
    assert get_code(ended) == "approval_denied"
    assert "Not today." in ended["result"]["content"][0]["text"]
    assert not effects.read_text()
    assert list_ended_calls() == ["approval_denied"]


def test_an_expired_approval_is_a_denial(
    task_id: str, gateway_client: GatewayClient, effects: Any
) -> None:
    Approval.objects.update(expires_at=timezone.now())
    assert get_code(wait_for_task(gateway_client, task_id)) == "approval_expired"
    assert not effects.read_text()
    expire_overdue()
    assert list_ended_calls() == ["approval_expired"]


def test_a_canceled_call_withdraws_its_approval(
    task_id: str, gateway_client: GatewayClient, second_gateway: GatewayClient, effects: Any
) -> None:
    assert (
        send_task_request(second_gateway, AGENT, "tasks/cancel", task_id).result["resultType"]
        == "complete"
    )
    assert get_task(gateway_client, task_id)["status"] == "cancelled"
    assert Approval.objects.get().state == Approval.State.WITHDRAWN
    assert AuditRow.objects.filter(action="approval_request_canceled").count() == 1
    # Canceling again changes nothing; the same call can be requested again.
    send_task_request(gateway_client, AGENT, "tasks/cancel", task_id)
    repeated = gateway_client.modern(AGENT, "tools/call", COUNT, capabilities=DECLARED).result
    assert get_task(gateway_client, repeated["taskId"])["status"] == "working"
    assert Approval.objects.pending().count() == 1
    assert not effects.read_text()


def test_declining_the_url_cancels_the_call(task_id: str, gateway_client: GatewayClient) -> None:
    declined = {"inputResponses": {KEY: {"action": "decline"}}}
    send_task_request(gateway_client, AGENT, "tasks/update", task_id, params=declined)
    assert get_task(gateway_client, task_id)["status"] == "cancelled"


def test_the_task_is_visible_only_to_its_caller(
    acme: Organization, task_id: str, gateway_client: GatewayClient, resolve: Resolve, effects: Any
) -> None:
    resolve("approve")
    other_token = token_of(factories.build_administrator(acme))
    foreign_token = token_of(factories.build_administrator(factories.create_organization("other")))
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        params = {"inputResponses": {}} if method == "tasks/update" else {}
        reply = send_task_request(
            gateway_client, AGENT, method, task_id, token=other_token, params=params
        )
        assert reply.error["code"] == UNKNOWN
    assert (
        send_task_request(gateway_client, AGENT, "tasks/get", task_id, token=foreign_token).status
        == 404
    )
    assert not effects.read_text()
    assert wait_for_task(gateway_client, task_id)["status"] == "completed"


def test_a_client_without_tasks_gets_the_ordinary_result(
    ask_policy: None, gateway_client: GatewayClient
) -> None:
    url_only = {"elicitation": {"url": {}}}
    result = gateway_client.modern(AGENT, "tools/call", COUNT, capabilities=url_only).result
    assert result["resultType"] == "input_required"
    reply = gateway_client.modern(AGENT, "tools/call", COUNT)
    assert (reply.result["isError"], reply.code) == (True, "approval_required")
    assert not DeferredCall.objects.exists()


def test_the_same_call_is_deferred_once(task_id: str, gateway_client: GatewayClient) -> None:
    gateway_client.modern(AGENT, "tools/call", COUNT, capabilities=DECLARED)
    assert (DeferredCall.objects.count(), Approval.objects.count()) == (1, 1)


def test_an_approval_of_an_outdated_call_asks_again(
    acme: Organization,
    helper: Agent,
    task_id: str,
    gateway_client: GatewayClient,
    resolve: Resolve,
    effects: Any,
) -> None:
    resolve("approve")
    policy = PolicySpec("all", ask=("mcp_workshop_*",))
    set_policy(factories.build_administrator(acme), helper, policy)
    get_task(gateway_client, task_id)
    eventually(lambda: Approval.objects.pending().exists(), what="the new approval")
    assert get_task(gateway_client, task_id)["status"] == "working"
    resolve("approve")
    assert (wait_for_task(gateway_client, task_id)["status"], effects.read_text()) == (
        "completed",
        "once\n",
    )


def test_a_call_denied_by_a_later_policy_doesnt_run(
    acme: Organization,
    helper: Agent,
    task_id: str,
    gateway_client: GatewayClient,
    resolve: Resolve,
    effects: Any,
) -> None:
    resolve("approve")
    policy = PolicySpec("denylist", deny=("mcp_workshop_count",))
    set_policy(factories.build_administrator(acme), helper, policy)
    ended = wait_for_task(gateway_client, task_id)
    assert (ended["status"], ended["error"]["code"]) == ("failed", UNKNOWN)
    assert not effects.read_text()


# --- processes that die


def expire_lease(row: DeferredCall) -> None:
    """Make the call's process look dead."""
    DeferredCall.objects.filter(pk=row.pk).update(
        heartbeat_at=timezone.now() - 2 * deferred_calls.LEASE
    )


def test_an_unsent_call_is_run_by_another_process(
    task_id: str, gateway_client: GatewayClient, resolve: Resolve, effects: Any
) -> None:
    resolve("approve")
    row = deferred_calls.find_deferred_call(
        DeferredCall.objects.get().organization_id, DeferredCall.objects.get().pk
    )
    assert row is not None
    assert deferred_calls.claim_deferred_call(row)
    assert get_task(gateway_client, task_id)["status"] == "working"
    assert not effects.read_text()
    expire_lease(row)
    assert wait_for_task(gateway_client, task_id)["status"] == "completed"
    assert effects.read_text() == "once\n"
    # The process that lost its lease changes nothing.
    assert not deferred_calls.update_heartbeat(row)
    assert not deferred_calls.finish_deferred_call(row, DeferredCall.State.DONE, {"result": {}})


def test_a_process_that_lost_its_lease_sends_nothing(
    task_id: str,
    gateway_client: GatewayClient,
    resolve: Resolve,
    effects: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve("approve")
    # Another process has claimed the call before this one sends it.
    monkeypatch.setattr(deferred_calls, "update_heartbeat", lambda row: False)
    ended = wait_for_task(gateway_client, task_id)
    call = AuditRow.objects.get(pk=DeferredCall.objects.get().call_id)
    assert (get_code(ended), call.code) == ("superseded", "superseded")
    assert not effects.read_text()


def test_a_sent_call_isnt_repeated(
    task_id: str, gateway_client: GatewayClient, resolve: Resolve, effects: Any
) -> None:
    resolve("approve")
    wait_for_task(gateway_client, task_id)
    row = DeferredCall.objects.get()
    DeferredCall.objects.filter(pk=row.pk).update(state=DeferredCall.State.RUNNING)
    expire_lease(row)
    assert get_code(wait_for_task(gateway_client, task_id)) == "outcome_unknown"
    assert effects.read_text() == "once\n"


def test_one_of_many_concurrent_polls_runs_the_call(
    task_id: str, gateway_client: GatewayClient, resolve: Resolve, effects: Any
) -> None:
    resolve("approve")
    row = deferred_calls.find_deferred_call(
        DeferredCall.objects.get().organization_id, DeferredCall.objects.get().pk
    )
    assert row is not None
    stale = DeferredCall.objects.get()
    assert (deferred_calls.claim_deferred_call(row), deferred_calls.claim_deferred_call(stale)) == (
        True,
        False,
    )


def test_a_deferred_call_is_deleted_after_its_ttl(
    task_id: str, gateway_client: GatewayClient
) -> None:
    with time_machine.travel(timezone.now() + timedelta(days=3), tick=False):
        assert deferred_calls.delete_expired() == 1
    assert send_task_request(gateway_client, AGENT, "tasks/get", task_id).error["code"] == UNKNOWN


# --- servers that request input, and servers that create tasks


@pytest.fixture
def shop(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    with Upstream("shop").listening() as upstream:
        attach_upstream(upstream, acme, helper)
        set_policy(
            factories.build_administrator(acme), helper, PolicySpec("all", ask=("mcp_shop_*",))
        )
        yield upstream


def start_task(gateway_client: GatewayClient, tool: str) -> str:
    params = {"name": f"mcp_shop_{tool}", "arguments": {}}
    reply: Reply = gateway_client.modern(AGENT, "tools/call", params, capabilities=ABLE)
    task_id: str = reply.result["taskId"]
    return task_id


def test_input_requests_of_the_server_are_requested_by_the_task(
    shop: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient, resolve: Resolve
) -> None:
    task_id = start_task(gateway_client, "ask")
    resolve("approve")
    requests = eventually(
        lambda: get_task(gateway_client, task_id).get("inputRequests"), what="request"
    )
    assert [*requests] == [*ANSWERS]
    send_task_request(
        second_gateway, AGENT, "tasks/update", task_id, params={"inputResponses": ANSWERS}
    )
    ended = wait_for_task(gateway_client, task_id)
    assert "Ann" in ended["result"]["content"][0]["text"]
    assert Approval.objects.count() == 1


def test_a_task_of_the_server_becomes_the_clients_task(
    shop: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient, resolve: Resolve
) -> None:
    task_id = start_task(gateway_client, "work")
    resolve("approve")
    assert wait_for_task(gateway_client, task_id)["result"]["content"][0]["text"] == 'shop "worked"'
    assert get_task(second_gateway, task_id)["taskId"] == task_id


# --- events while a call runs


@pytest.fixture
def handshake_server(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    """A server of the handshake era that requests input during a call, or never answers."""
    with Upstream("bygone", handshake=True).listening() as upstream:
        attach_upstream(upstream, acme, helper)
        policy = PolicySpec("all", ask=("mcp_bygone_*",))
        set_policy(factories.build_administrator(acme), helper, policy)
        yield upstream


@pytest.mark.parametrize("location", ["here", "elsewhere"])
def test_a_call_that_is_canceled_while_running_ends(
    location: str,
    handshake_server: Upstream,
    gateway_client: GatewayClient,
    second_gateway: GatewayClient,
    resolve: Resolve,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_tasks, "HEARTBEAT_INTERVAL_S", 0.05)
    arguments = {"times": 0, "for_ever": True}
    params = {"name": "mcp_bygone_ask", "arguments": arguments}
    task_id = gateway_client.modern(AGENT, "tools/call", params, capabilities=ABLE).result["taskId"]
    resolve("approve")
    assert get_task(gateway_client, task_id)["status"] == "working"
    eventually(
        lambda: "tools/call" in handshake_server.http.methods(), what="the call of the server"
    )
    send_task_request(
        gateway_client if location == "here" else second_gateway, AGENT, "tasks/cancel", task_id
    )
    assert wait_for_task(gateway_client, task_id)["status"] == "cancelled"
    call = AuditRow.objects.get(pk=DeferredCall.objects.get().call_id)
    eventually(lambda: call.refresh_from_db() or call.closed, what="the end of the call")
    assert handshake_server.http.methods().count("tools/call") == 1


def test_a_call_claimed_by_another_process_doesnt_run_here(
    task_id: str,
    gateway_client: GatewayClient,
    resolve: Resolve,
    effects: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve("approve")
    monkeypatch.setattr(deferred_calls, "claim_deferred_call", lambda row: False)
    assert get_task(gateway_client, task_id)["status"] == "working"
    assert not effects.read_text()


def test_an_error_of_the_server_is_the_result_of_the_task(
    shop: Upstream, gateway_client: GatewayClient, resolve: Resolve
) -> None:
    shop.overrides["tools/call"] = {"code": -32050, "data": {"why": "shut"}}
    task_id = start_task(gateway_client, "echo")
    resolve("approve")
    ended = wait_for_task(gateway_client, task_id)
    assert (ended["status"], ended["error"]["code"]) == ("failed", -32050)
    assert ended["error"]["data"] == {"why": "shut"}


async def raise_unavailable(request: Any) -> Any:
    raise ServiceUnavailable("Audit log not available.", code="audit_unavailable")


async def return_false(*_: Any) -> bool:
    return False


def test_a_call_that_cant_be_made_has_its_reason(
    task_id: str,
    gateway_client: GatewayClient,
    resolve: Resolve,
    effects: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve("approve")
    monkeypatch.setattr(mcp_tasks.pipeline, "make_call", raise_unavailable)
    assert get_code(wait_for_task(gateway_client, task_id)) == "audit_unavailable"
    assert not effects.read_text()


def test_an_internal_error_is_reported_for_a_removed_tool(
    task_id: str, gateway_client: GatewayClient, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve("approve")
    monkeypatch.setattr(mcp_tasks.pipeline, "make_call", raise_unavailable)
    monkeypatch.setattr(mcp_tasks, "is_tool_listed", return_false)
    ended = wait_for_task(gateway_client, task_id)
    assert (ended["status"], ended["error"]["code"]) == ("failed", -32603)
    assert ended["error"]["data"]["code"] == "audit_unavailable"


def test_a_deferred_call_requests_a_new_approval_when_its_changed_definition_is_approved(
    acme: Organization,
    workshop: Server,
    task_id: str,
    gateway_client: GatewayClient,
    resolve: Resolve,
) -> None:
    replaced = Approval.objects.pending().get()
    definition = Definition.objects.get(server=workshop, name="count")
    definition.set_payload({**definition.payload, "description": "Also forwards customers."})
    definition.save()
    with pytest.raises(Conflict) as raised:
        resolve("approve")
    assert raised.value.code == "definition_changed"
    assert (
        send_task_request(gateway_client, AGENT, "tasks/get", task_id).result["status"] == "working"
    )
    assert Approval.objects.pending().get() == replaced
    administrator = factories.build_administrator(acme)
    approve_definitions(administrator, workshop, {definition.pk: definition.digest})

    def has_new_approval() -> bool:
        send_task_request(gateway_client, AGENT, "tasks/get", task_id)
        return Approval.objects.pending().exclude(pk=replaced.pk).exists()

    eventually(has_new_approval)
    replaced.refresh_from_db()
    assert replaced.state == Approval.State.WITHDRAWN
    resolve("approve")

    def is_completed() -> bool:
        return bool(
            send_task_request(gateway_client, AGENT, "tasks/get", task_id).result["status"]
            == "completed"
        )

    eventually(is_completed)
