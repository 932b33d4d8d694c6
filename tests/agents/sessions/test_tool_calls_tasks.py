"""Calls that become tasks of a server: polled by any process until they end."""

import json
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from django.utils import timezone

from agents.approvals.services import resolve_approval
from agents.elicitations.services import answer_request
from agents.models import Approval, ElicitationRequest, PendingCall, Session, Step
from agents.sessions import services as sessions
from agents.tasks import sweep
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.server_config import build_changed_spec
from mcp_servers.services import update_server
from tests import factories
from tests.agents.sessions.client_request_sessions import run_session
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp

pytestmark = pytest.mark.django_db(transaction=True)

TASKS = "io.modelcontextprotocol/tasks"
WORKING = {"status": "working"}
FORM = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Which one?",
        "requestedSchema": {"type": "object", "properties": {"one": {"type": "string"}}},
    },
}
ASKS = {"status": "input_required", "inputRequests": {"which": FORM}}


def build_completed_state(text):
    return {"status": "completed", "result": {"content": [{"type": "text", "text": text}]}}


class TaskServer:
    """A modern HTTP server whose only tool creates a task; `states` are the polled states."""

    def __init__(self):
        self.http = RawHttp(self.respond)
        self.states = [WORKING]
        self.ttl_ms = None

    def respond(self, request):
        params = request.message.get("params", {})
        results = {
            "server/discover": {
                "supportedVersions": [raw_http_server.MODERN],
                "capabilities": {"tools": {}, "extensions": {TASKS: {}}},
            },
            "tools/list": {"tools": [{"name": "build", "inputSchema": {"type": "object"}}]},
            "tools/call": {
                **{"resultType": "task", "taskId": "t-1", "status": "working"},
                **{"pollIntervalMs": 500, "ttlMs": self.ttl_ms},
            },
            "tasks/cancel": {},
            "tasks/update": {},
        }
        if request.method in ("tasks/update", "tasks/cancel"):
            self.states = self.states[1:] or [WORKING]
        if request.method == "tasks/get":
            assert request.headers["mcp-name"] == params["taskId"] == "t-1"
            if not self.states:
                return raw_http_server.error(request, -32602, 200)
            state = self.states[0]
            if len(self.states) > 1 and state["status"] == "working":
                self.states = self.states[1:]
            return raw_http_server.result(request, {"taskId": "t-1", **state})
        if request.method not in results:
            return raw_http_server.error(request, -32601, 404)
        return raw_http_server.result(request, results[request.method])

    def count(self, method):
        return self.http.methods().count(method)


@pytest.fixture
def task_server(acme, helper, settings):
    """A server with long tasks, attached to the agent; each part polls for one second."""
    settings.BONOBOT_READ_S = 1
    new_server, stack = TaskServer(), AsyncExitStack()
    get_runtime().call(stack.enter_async_context, new_server.http.listening())
    server = factories.approve_server(
        acme, factories.create_http_server(acme, new_server.http.url, "remote"), helper
    )
    new_server.server = server
    yield new_server
    get_runtime().call(get_connection_pool().forget_server, server.pk)
    get_runtime().call(stack.aclose)


@pytest.fixture
def start(administrator, helper, runner):
    return lambda: run_session(
        sessions.start_session(administrator, helper, "/mcp_remote_build {}"), runner
    )


def get_call(session):
    return Step.objects.get(session=session, kind=Step.Kind.CALL)


def make_due(session):
    """Make the next poll of the task due."""
    past = timezone.now() - timedelta(seconds=1)
    assert PendingCall.objects.filter(session=session, next_at__gt=past).update(next_at=past) == 1


def list_codes(session):
    rows = AuditRow.objects.filter(session_id=session.pk, event_type="call").order_by("seq")
    return [row.code for row in rows]


def test_a_task_is_polled_without_occupying_a_worker(task_server, start, runner):
    session = start()
    assert (session.status, session.runner) == (Session.Status.WAITING, None)
    assert list_codes(session) == ["task", "task"]
    polls = task_server.count("tasks/get")
    assert 1 <= polls <= 3
    assert sweep() == 0  # not yet
    assert run_session(session, runner).status == Session.Status.WAITING

    make_due(session)
    assert sweep() == 1
    task_server.states = [build_completed_state("built")]
    assert run_session(session, runner).status == Session.Status.DONE
    step = get_call(session)
    assert (step.payload["text"], step.state) == ("built", Step.State.DONE)
    assert list_codes(session) == ["task", "task", ""]
    assert task_server.count("tools/call") == 1
    rows = AuditRow.objects.filter(session_id=session.pk, event_type="call").order_by("seq")
    first, *_, last = rows
    assert str(first.pk) in json.loads(last.opened)["details"]["continues"]
    assert PendingCall.objects.get().closed_at is not None


def test_an_input_request_of_a_task_is_sent_once(task_server, start, runner, administrator):
    task_server.states = [ASKS]
    session = start()
    assert session.status == Session.Status.WAITING
    task_server.states = [
        ASKS,
        ASKS,
        build_completed_state("built"),
    ]  # it processes the answer a little later
    answer_request(administrator, ElicitationRequest.objects.get(), "accept", {"one": "blue"})
    run_session(session, runner)
    while session.status == Session.Status.WAITING:
        task_server.states = [build_completed_state("built")]
        make_due(session)
        sweep()
        run_session(session, runner)
    updates = [
        request.message for request in task_server.http.asked if request.method == "tasks/update"
    ]
    answer = {"which": {"action": "accept", "content": {"one": "blue"}}}
    assert [update["params"]["inputResponses"] for update in updates] == [answer]
    assert ElicitationRequest.objects.count() == 1
    assert get_call(session).payload["text"] == "built"


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([{"status": "failed", "error": {"code": -32000, "message": "No disk"}}], "upstream_error"),
        ([{"status": "cancelled"}], "task_cancelled"),
        ([{**build_completed_state(""), "result": {"isError": True, "content": []}}], "tool_error"),
    ],
)
def test_a_failed_task_is_reported(task_server, start, states, code):
    task_server.states = states
    session = start()
    assert session.status == Session.Status.DONE
    assert (get_call(session).payload["code"], get_call(session).state) == (code, Step.State.FAILED)


@pytest.mark.parametrize(
    ("states", "cause"),
    [
        ([], "task_lost"),
        ([{"status": "completed"}], "protocol_error"),
        ([{**ASKS, "inputRequests": {"x": {"method": "roots/list"}}}], "protocol_error"),
    ],
)
def test_a_person_is_asked_about_a_task_whose_end_isnt_known(
    task_server, start, runner, administrator, states, cause
):
    task_server.states = states
    session = start()
    assert session.status == Session.Status.WAITING
    approval = Approval.objects.get(session=session)
    assert approval.code == "call_interrupted"
    row = AuditRow.objects.get(pk=approval.call_id)
    assert (row.outcome, row.code) == ("unknown", "outcome_unknown")
    assert json.loads(row.closed)["details"]["cause"] == cause
    assert PendingCall.objects.get().closed_at is not None

    resolve_approval(administrator, approval, "deny")
    run_session(session, runner)
    step = get_call(session)
    assert (session.status, step.state) == (Session.Status.DONE, Step.State.UNKNOWN)
    assert step.payload["code"] == "outcome_unknown"
    assert task_server.count("tools/call") == 1


def test_a_lost_task_is_started_again_when_a_person_approves_it(
    task_server, start, runner, administrator
):
    task_server.states = []
    session = start()
    task_server.states = [build_completed_state("built")]
    for code in ("call_interrupted", "flow_needs_approval"):
        resolve_approval(administrator, Approval.objects.pending().get(code=code), "approve")
        run_session(session, runner)
    assert (session.status, get_call(session).payload["text"]) == ("done", "built")
    assert task_server.count("tools/call") == 2


def test_a_task_that_takes_too_long_is_canceled_and_a_person_is_asked(task_server, start, runner):
    task_server.ttl_ms = 60_000
    session = start()
    PendingCall.objects.update(ends_at=timezone.now())
    make_due(session)
    sweep()
    run_session(session, runner)
    row = AuditRow.objects.get(pk=Approval.objects.get(session=session).call_id)
    assert json.loads(row.closed)["details"]["cause"] == "task_expired"
    assert task_server.count("tasks/cancel") == 1


def test_a_canceled_session_cancels_its_task(task_server, start, runner, administrator):
    session = start()
    sessions.cancel_session(administrator, session)
    run_session(session, runner)
    assert session.status == Session.Status.CANCELLED
    assert task_server.count("tasks/cancel") == 1
    assert get_call(session).payload["code"] == "unfinished"


def test_an_interrupted_poll_is_repeated(task_server, start, runner):
    """The process died while polling; a poll needs no approval to be repeated."""
    session = start()
    make_due(session)
    sweep()

    # The step's id is that of an earlier part of the pending call.
    first, _last = PendingCall.objects.get().call_ids
    Step.objects.filter(pk=get_call(session).pk).update(call_id=first)
    task_server.states = [build_completed_state("built")]
    run_session(session, runner)
    assert (session.status, get_call(session).payload["text"]) == ("done", "built")
    assert task_server.count("tools/call") == 1


def test_a_short_outage_of_the_server_loses_no_task(task_server, start, runner):
    session = start()
    make_due(session)
    sweep()
    respond, task_server.http.respond = (
        task_server.http.respond,
        lambda request: raw_http_server.response(503),
    )
    run_session(session, runner)
    assert session.status == Session.Status.WAITING
    task_server.http.respond = respond
    task_server.states = [build_completed_state("built")]
    make_due(session)
    sweep()
    assert run_session(session, runner).status == Session.Status.DONE


def test_a_child_process_with_a_task_isnt_closed(register_asker, run_tool, get_received):
    register_asker("modern")
    session = run_tool("task", states=[WORKING, WORKING, build_completed_state("built")])
    assert (session.status, get_call(session).payload["text"]) == (Session.Status.DONE, "built")
    assert len(get_received("tasks/get")) == 3


def test_the_mcp_root_is_the_sessions_folder(
    register_asker, run_tool, administrator, helper, get_received, tmp_path, runner
):
    server = register_asker("modern")
    update_server(administrator, server, build_changed_spec(server, roots=True))
    rounds = [{"inputRequests": {"r": {"method": "roots/list"}}}]
    session = run_tool("script", rounds=rounds)
    (root,) = get_received("tools/call")[1]["params"]["inputResponses"]["r"]["roots"]
    assert root["uri"].endswith(f"/workspaces/{helper.organization_id}/{helper.pk}")
    assert session.status == Session.Status.DONE
    text = f"/mcp_asker_script {json.dumps({'rounds': rounds})}"
    run_session(
        sessions.start_session(administrator, helper, text, working_dir=str(tmp_path)), runner
    )
    (root,) = get_received("tools/call")[3]["params"]["inputResponses"]["r"]["roots"]
    assert root == {"uri": tmp_path.as_uri(), "name": "workspace"}
