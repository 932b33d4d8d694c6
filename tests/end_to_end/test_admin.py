"""The admin in a real browser, with one real web process and one real worker for all tests.

An administrator connects a server and sees an agent use it; a server
requests input in the middle of a session; the audit log is verified; HTTP operations are declared.
"""

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models import QuerySet
from django.utils import timezone
from playwright.sync_api import ConsoleMessage, Locator, Page, expect

from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Agent, Session, Step
from agents.models.recordings import Replay
from agents.sessions.export import build_report
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.roles import Role
from bonobot.celery import app
from bonobot.jobs.queues import QUEUE_NAMES
from bonobot.ledger.models import AuditRow
from mcp_servers.models import BulkJob, BulkJobItem, HealthCheck, Server
from mcp_servers.tasks import check_due_servers, run_bulk_job
from tests import admin_client, factories, processes
from tests.end_to_end.accounts import sign_in
from tests.ledger_chain import verify_whole_chain
from tests.processes import Process, Web
from tests.servers.rest_api_server import Shop, open_shop
from tests.wait import eventually

pytestmark = [pytest.mark.browser, pytest.mark.worker]
PATIENCE_MS = 60_000
AUDIT = "/admin/audit-log/"
FILES = "d = new DataTransfer(); d.items.add(new File(['x'], 'a.txt')); d"
FORM = {"method": "elicitation/create", "params": factories.FORM}


@pytest.fixture
def anna(acme: Organization, module_page: Page, module_web: Web) -> Iterator[Page]:
    """The platform administrator's browser; an error in its console fails the test."""
    administrator = User.objects.create_superuser(f"anna-{acme.slug}", password="pw-for-tests")
    Membership.objects.create(organization=acme, user=administrator, role=Role.OWNER)
    save_endpoint(
        factories.build_administrator(acme),
        ModelEndpointSpec(name="Offline", kind="offline", model="offline"),
    )
    faults: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        if message.type == "error":
            faults.append(message.text)

    module_page.on("console", listen)
    sign_in(module_page, administrator, acme, module_web.url)
    yield module_page
    assert not faults


# An administrator connects a server, and an agent uses it.


@pytest.fixture
def everything(
    node_server: Callable[[str], str], running: list[Process], tmp_path: Path
) -> tuple[Process, str]:
    """The reference server over Streamable HTTP, and its URL."""
    port = processes.find_unused_port()
    process = processes.start_process(
        "everything",
        [node_server("mcp-server-everything"), "streamableHttp"],
        folder=tmp_path,
        env={"PATH": os.environ["PATH"], "PORT": str(port)},
    )
    running.append(process)
    eventually(
        lambda: process.require() and f"{port}" in process.log(), within=60, what="the server"
    )
    return process, f"http://127.0.0.1:{port}/mcp"


def add_by_pasting(page: Page, url: str) -> None:
    page.goto("/admin/mcp-servers/add/paste/")
    page.locator("textarea[name=text]").fill(
        json.dumps({"mcpServers": {"everything": {"url": url}, "broken": {"url": "ftp://x"}}})
    )
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("[data-entry=broken]")).to_contain_text("bad_url")
    page.locator("[data-entry=everything]").get_by_label("Allow private address").check()
    page.get_by_role("button", name="Add 1 server").click()


def attach_and_allow_two_tools(page: Page) -> None:
    """Attach the server to the agent and allow two of its tools, all on one screen."""
    page.get_by_role("navigation", name="Page sections").get_by_text("Tools", exact=True).click()
    page.locator(".bb-attach-menu").get_by_label("everything").check()
    page.get_by_role("button", name="Attach selected").click()
    for name in ("echo", "get-sum"):
        page.get_by_role("radiogroup", name=name).get_by_text("Allow", exact=True).click()
    bar = page.locator("[data-save-bar]")
    expect(bar).to_contain_text("echo, get-sum: inherited to allow")
    page.get_by_role("button", name="Save changes").click()
    expect(page.locator("body")).to_contain_text("Saved. Effective immediately.")


def send_message(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send").click()


def send_and_wait(page: Page, text: str) -> None:
    page.get_by_role("link", name="Chat").click()
    send_message(page, text)
    expect(page.locator("[data-part=state]")).to_contain_text("completed", timeout=PATIENCE_MS)


@pytest.mark.npm
def test_an_administrator_connects_a_server_and_sees_an_agent_use_it(
    anna: Page, acme: Organization, module_worker: Process, everything: tuple[Process, str]
) -> None:
    process, url = everything
    add_by_pasting(anna, url)
    anna.get_by_role("button", name="Approve selected").click(timeout=PATIENCE_MS)
    expect(anna.locator("body")).to_contain_text(re.compile(r"\d+ definitions approved\."))

    anna.goto("/admin/agents/add/")
    anna.get_by_label("Name").fill("Tester")
    anna.get_by_role("button", name="Create agent").click()
    attach_and_allow_two_tools(anna)
    expect(anna.locator("[data-filter-state=allow]")).to_have_text("Allow 2")

    send_and_wait(anna, '/mcp_everything_echo {"message": "hello <b>there</b>"}')
    call = anna.locator("details.bb-call")
    call.locator("summary").click()
    expect(call).to_contain_text("Echo: hello <b>there</b>")
    expect(call).to_contain_text("decision: allow")

    session = Session.objects.get(organization=acme)
    assert [call_report["name"] for call_report in build_report(session.pk)["calls"]] == [
        "mcp_everything_echo"
    ]
    anna.goto(f"/admin/sessions/{session.pk}/change/")
    expect(anna.locator("[data-steps]")).to_contain_text("mcp_everything_echo")
    anna.locator("details.bb-call summary").click()
    anna.locator("details.bb-call").get_by_role("link", name="audit").click()
    expect(anna.locator("body")).to_contain_text(re.compile(r"Entry \d+"))
    row = AuditRow.objects.get(organization_id=acme.pk, event_type="call", tool_name="echo")
    assert (row.session_id, row.outcome, row.agent_name) == (session.pk, "ok", "Tester")
    assert verify_whole_chain(acme.pk).ok

    process.kill()
    server = Server.objects.get(organization=acme)
    anna.goto(f"/admin/mcp-servers/{server.pk}/change/")
    anna.get_by_role("button", name="Test").click()
    expect(anna.locator("body")).to_contain_text("server_unreachable", timeout=PATIENCE_MS)
    anna.goto(f"/admin/agents/{Agent.objects.get(organization=acme).pk}/change/")
    send_and_wait(anna, '/mcp_everything_get_sum {"a": 2, "b": 3}')
    expect(anna.locator("[data-steps]")).to_contain_text("server_unreachable")
    expect(anna.locator("[data-steps]")).to_contain_text("is not reachable now")


def test_the_form_shows_the_fields_of_the_chosen_transport(anna: Page, acme: Organization) -> None:
    anna.goto("/admin/mcp-servers/add/")
    expect(anna.get_by_label("URL", exact=True)).to_be_visible()
    expect(anna.get_by_label("Command")).to_be_hidden()
    anna.get_by_label("stdio").check()
    expect(anna.get_by_label("Command")).to_be_visible()
    expect(anna.get_by_label("URL", exact=True)).to_be_hidden()
    anna.get_by_label("HTTP").check()
    anna.get_by_text("More connection settings").click()
    anna.get_by_role("button", name="Add row").click()
    anna.get_by_label("Name", exact=True).last.fill("X-Team")
    anna.get_by_label("Value", exact=True).fill("geheim")
    anna.get_by_label("Sign-in").select_option("bearer_token")
    expect(anna.get_by_label("Bearer token")).to_be_visible()
    anna.locator("#id_name").fill("weather")
    anna.get_by_label("URL", exact=True).fill("ftp://x")
    anna.get_by_role("button", name="Add and connect").click()
    expect(anna.locator("[data-field=url]")).to_contain_text("bad_url")
    assert not Server.objects.filter(organization=acme).exists()


def test_the_worker_checks_servers_that_are_due(acme: Organization, module_worker: Process) -> None:
    server = admin_client.create_web_server(acme, "gone")  # nothing listens there
    check_due_servers.delay()
    eventually(lambda: HealthCheck.objects.filter(server=server).exists(), within=20)
    server.refresh_from_db()
    assert (server.status, server.status_code) == (Server.Status.ERROR, "server_unreachable")


# A session in the browser.


def test_a_session_continues_without_a_reload_and_a_turn_is_retried(
    anna: Page, acme: Organization, module_worker: Process
) -> None:
    agent = factories.create_agent(acme)
    anna.goto(f"/admin/agents/{agent.pk}/change/")
    send_and_wait(anna, "What can you do?")
    address = anna.url
    anna.get_by_label("New message", exact=True).fill("And now?")
    anna.get_by_label("New message", exact=True).press("Enter")
    expect(anna.locator("[data-part=state]")).to_contain_text("completed", timeout=PATIENCE_MS)
    expect(anna.locator("[data-kind=message]")).to_have_count(2)
    assert anna.url == address
    anna.get_by_role("button", name="Resend").last.click()
    previous_version = anna.get_by_role("button", name="Previous version")
    expect(previous_version).to_be_visible(timeout=PATIENCE_MS)
    expect(anna.locator("[data-part=state]")).to_contain_text("completed", timeout=PATIENCE_MS)
    expect(anna.locator("[data-kind=message]:visible")).to_have_count(2)
    previous_version.click()
    expect(anna.locator("[data-kind=message]:visible")).to_have_count(2)
    expect(anna.locator("[data-kind=message]:visible").last).to_contain_text("1 / 2")


@pytest.mark.whole("postgres")
def test_a_server_requests_input_and_a_session_is_exported_replayed_and_canceled(
    owner: Page,
    acme: Organization,
    module_worker: Process,
    add_program: Callable[..., Server],
) -> None:
    agent = factories.create_agent(acme)
    add_program(agent, "asker", "modern")
    add_program(agent, "workshop", "stdio")
    owner.goto(f"/admin/agents/{agent.pk}/change/")
    state = owner.locator("[data-part=state]")
    rounds = [{"inputRequests": {"0": FORM}}]
    send_message(owner, f"/mcp_asker_script {json.dumps({'rounds': rounds})}")
    elicitation = owner.locator("[data-kind=notice]")
    expect(elicitation).to_contain_text("Which region?", timeout=PATIENCE_MS)
    elicitation.get_by_label("Region").select_option("eu")
    elicitation.get_by_role("button", name="Send to server").click()
    expect(state).to_contain_text("completed", timeout=PATIENCE_MS)
    expect(elicitation.get_by_label("Region")).to_have_count(0)
    expect(owner.locator("details.bb-call").last).to_contain_text('"eu"')

    with owner.expect_download() as download:
        owner.get_by_role("link", name="Markdown").click()
    assert "Which region?" in download.value.path().read_text(encoding="utf-8")
    with owner.expect_download() as download:
        owner.get_by_role("link", name="JSON").click()
    assert json.loads(download.value.path().read_text(encoding="utf-8"))

    session = Session.objects.get(organization=acme)
    owner.goto(f"/admin/sessions/{session.pk}/change/")
    owner.get_by_role("button", name="Record").click()
    owner.get_by_role("button", name="Start replay", exact=True).click()
    replays = Replay.objects.filter(organization=acme)
    eventually(lambda: replays.get().status == Replay.Status.DONE, within=60)

    owner.goto(f"/admin/agents/{agent.pk}/change/")
    send_message(owner, '/mcp_workshop_wait {"seconds": 300}')
    expect(owner.locator("details.bb-call")).to_contain_text("running", timeout=PATIENCE_MS)
    expect(state).to_contain_text(re.compile(r"running\s+wait\s+\d+ s"))
    composer, files = owner.locator("[data-chat-dock] .bb-composer"), owner.evaluate_handle(FILES)
    composer.dispatch_event("drop", {"dataTransfer": files})
    expect(composer.locator("[data-file-list]")).to_contain_text("a.txt")
    composer.get_by_role("button", name="Remove file").click()
    state.get_by_role("button", name="Stop").click()
    expect(owner.get_by_text("Canceled", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    canceled = Session.objects.filter(organization=acme).latest("created_at")
    assert canceled.status == Session.Status.CANCELLED


def create_running_session(acme: Organization) -> Session:
    """Create the rows of a session in the middle of a turn, which no worker runs."""
    session = Session.objects.create(
        organization=acme,
        agent=factories.create_agent(acme),
        status=Session.Status.RUNNING,
        started_by_kind="cli",
    )
    for seq, kind, state in (
        (1, Step.Kind.MESSAGE, Step.State.DONE),
        (2, Step.Kind.MODEL, Step.State.INTENT),
        (3, Step.Kind.END, Step.State.DONE),
    ):
        payload = {"text": "Hello", "by": "ann"} if kind == Step.Kind.MESSAGE else {}
        Step.objects.create(
            session=session, seq=seq, kind=kind, state=state, turn=seq == 2, payload=payload
        )
    return session


@pytest.mark.whole("postgres")
def test_a_turn_that_ended_without_text_leaves_no_trace(acme: Organization, owner: Page) -> None:
    session = create_running_session(acme)
    owner.goto(f"/admin/sessions/{session.pk}/change/")
    thinking = owner.get_by_label("Waiting for the model")
    expect(thinking).to_be_visible()

    session.steps.filter(seq=2).update(state=Step.State.DONE, payload={"text": ""})
    Session.objects.filter(pk=session.pk).update(status=Session.Status.DONE)
    expect(owner.locator("[data-part=state]")).to_contain_text("completed", timeout=PATIENCE_MS)
    expect(thinking).to_have_count(0)


@pytest.mark.whole("postgres")
def test_thinking_is_shown_collapsed_while_it_arrives(acme: Organization, owner: Page) -> None:
    session = create_running_session(acme)

    def show_output(state: str = Step.State.INTENT, **payload: str) -> None:
        session.steps.filter(seq=2).update(state=state, payload=payload)
        Session.objects.filter(pk=session.pk).update(updated_at=timezone.now())

    owner.goto(f"/admin/sessions/{session.pk}/change/")
    thinking = owner.locator("details.bb-thinking")
    expect(owner.get_by_label("Waiting for the model")).to_be_visible()
    expect(thinking).to_be_hidden()
    show_output(text="", thinking="Let me <b>")
    expect(thinking).to_be_visible(timeout=PATIENCE_MS)
    expect(thinking.locator("[data-thinks]")).to_be_hidden()
    thinking.get_by_text("Thinking").click()
    expect(thinking.locator("[data-thinks]")).to_have_text("Let me <b>")
    show_output(text="", thinking="Let me <b>see.")
    expect(thinking.locator("[data-thinks]")).to_have_text("Let me <b>see.")
    show_output(Step.State.DONE, text="It is noon.", thinking="Let me <b>see.")
    expect(owner.locator("#step-text-2")).to_have_text("It is noon.", timeout=PATIENCE_MS)
    expect(thinking.locator("[data-thinks]")).to_have_text("Let me <b>see.")


# The audit log.


@pytest.mark.whole("postgres")
def test_a_worker_verifies_the_chain_and_an_error_links_to_its_entry(
    owner: Page, acme: Organization, module_worker: Process
) -> None:
    admin_client.create_web_server(acme)  # writes an entry
    owner.goto(AUDIT)
    owner.locator(".bb-integrity summary").click()
    verification = owner.locator("#verification")
    verification.get_by_role("button", name="Verify").click()
    expect(verification).to_contain_text("Verified up to entry", timeout=PATIENCE_MS)
    expect(verification).to_contain_text("verified")

    altered = AuditRow.objects.filter(organization_id=acme.pk).latest("seq")
    # Directly in the database, as an intruder could.
    assert QuerySet(AuditRow).filter(pk=altered.pk).update(actor_label="nobody") == 1
    verification.get_by_role("button", name="Verify from start").click()
    fault = verification.get_by_role("alert")
    expect(fault).to_contain_text("1 integrity error:", timeout=PATIENCE_MS)
    expect(fault).to_contain_text("actor_label")
    verification.get_by_role("link", name="View entry").first.click()
    expect(owner).to_have_url(re.compile(str(altered.pk)))


@pytest.mark.whole("postgres")
def test_a_filter_is_saved_used_and_deleted(owner: Page) -> None:
    owner.goto(f"{AUDIT}?event_type__exact=change")
    saved = owner.locator("details.bb-saved")
    saved.locator("summary").click()
    saved.get_by_label("Filter name").fill("What changed")
    saved.get_by_role("button", name="Save filter").click()
    expect(owner.get_by_text("The filter What changed was saved.")).to_be_visible()

    owner.goto(AUDIT)
    saved.locator("summary").click()
    saved.get_by_role("link", name="What changed").click()
    expect(owner).to_have_url(re.compile("event_type__exact=change"))
    saved.locator("summary").click()
    saved.get_by_role("button", name="Delete").click()
    expect(saved.get_by_role("link", name="What changed")).to_have_count(0)


def test_an_entry_opens_beside_the_list_and_new_ones_are_announced(
    owner: Page, acme: Organization
) -> None:
    admin_client.create_web_server(acme, "second")
    owner.goto(AUDIT)
    panel, rows = owner.locator("[data-panel]"), owner.locator("[data-entry]")
    rows.filter(has_text="second").first.click()
    expect(panel.get_by_role("heading").first).to_contain_text("second")
    expect(owner).to_have_url(re.compile("entry="))
    owner.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    admin_client.create_web_server(acme, "third")
    expect(owner.locator("[data-audit-new]")).to_have_text("1 new", timeout=PATIENCE_MS)
    owner.get_by_role("switch", name="Live tail").click()
    expect(rows.first).to_contain_text("third")


# HTTP operations that an administrator declares.


@pytest.fixture
def shop() -> Iterator[Shop]:
    with open_shop() as api:
        yield api


def add_parameter(page: Page, **values: str) -> Locator:
    page.get_by_role("button", name="Add parameter").click()
    row = page.get_by_role("group", name="Parameter").last
    row.get_by_label("Name", exact=True).fill(values["name"])
    row.get_by_label("Location").select_option(values["place"])
    row.get_by_label("Type").select_option(values.get("type", "string"))
    row.get_by_label("Required").select_option(values.get("required", ""))
    row.get_by_label("Description").fill(values.get("description", ""))
    row.get_by_label("Default").fill(values.get("default", ""))
    return row


def approve_pending(page: Page, tool: str) -> None:
    # Tools that reach other systems aren't preselected.
    page.get_by_role("checkbox", name=tool).check(timeout=PATIENCE_MS)
    page.get_by_role("button", name="Approve selected").click(timeout=PATIENCE_MS)
    expect(page.locator("body")).to_contain_text("1 definition approved.")


def call_tool(page: Page, arguments: dict[str, object]) -> None:
    page.get_by_role("link", name="Try it").first.click()
    page.get_by_role("radio", name="JSON").check()
    page.locator("textarea[name=arguments]").fill(json.dumps(arguments))
    page.get_by_role("button", name="Call").click()
    expect(page.locator("#result")).to_be_visible(timeout=PATIENCE_MS)


@pytest.mark.whole("postgres")
def test_an_operation_is_declared_previewed_approved_called_and_changed(
    anna: Page, shop: Shop
) -> None:
    anna.goto("/admin/mcp-servers/add/operations/")
    anna.locator("#id_name").fill("shop")
    anna.get_by_label("Base URL").fill(f"{shop.url}/v1")
    anna.get_by_label("Allow private or loopback address").check()
    anna.get_by_label("Sign-in").select_option("bearer_token")
    anna.get_by_label("Bearer token").fill("sesame-sesame")
    anna.get_by_label("Tool name").fill("get_order")
    anna.locator("#id_op-description").fill("Look up an order by its number.")
    anna.locator("#id_op-path").fill("/orders/{id}")
    add_parameter(anna, name="id", place="path", type="integer", description="The order")
    add_parameter(anna, name="limit", place="query", type="integer", default="20")
    preview = anna.locator("[data-part=sent]")
    expect(preview).to_contain_text(f"GET {shop.url}/v1/orders/1?limit=20")
    anna.locator("#id_op-path").fill("https://{shop}.example.com/orders")
    expect(preview).to_contain_text("The host can't be a parameter.")
    anna.locator("#id_op-path").fill("/orders/{id}")
    expect(preview).to_contain_text("/v1/orders/1?limit=20")
    assert shop.arrived == []
    anna.get_by_role("button", name="Add and connect").click()
    approve_pending(anna, "get_order")
    call_tool(anna, {"id": 7})
    expect(anna.locator("#result")).to_contain_text("open")
    [request] = shop.arrived
    assert (request.path, request.headers["Authorization"]) == (
        "/v1/orders/7?limit=20",
        "Bearer sesame-sesame",
    )

    anna.get_by_role("link", name="Configure").click()
    row = anna.locator("tr", has_text="get_order")
    expect(row).to_contain_text("approved")
    row.get_by_role("link", name="Edit").click()
    expect(preview).to_contain_text("/v1/orders/1?limit=20")
    anna.locator("#id_op-description").fill("Look up an order, with its items.")
    anna.get_by_role("button", name="Save").click()
    anna.get_by_role("link", name="Review definitions").click(timeout=PATIENCE_MS)
    expect(anna.locator("body")).to_contain_text("by its number")
    expect(anna.locator("body")).to_contain_text("with its items")

    anna.get_by_role("link", name="Configure").click()
    anna.get_by_role("link", name="Add operation").click()
    anna.get_by_label("Tool name").fill("add_order")
    anna.get_by_label("Description").fill("Order something.")
    anna.locator("#id_op-method").select_option("POST")
    anna.locator("#id_op-path").fill("/orders")
    add_parameter(anna, name="customer.email", place="body", required="1")
    expect(preview).to_contain_text('"email": "EMAIL"')
    anna.get_by_role("button", name="Save").click()
    expect(anna.get_by_role("link", name="Review definitions")).to_be_visible(timeout=PATIENCE_MS)
    anna.get_by_role("link", name="Configure").click()
    anna.locator("tr", has_text="add_order").get_by_role("link", name="Delete").click()
    anna.get_by_role("button", name="Delete operation").click()
    anna.get_by_role("link", name="Configure").click()
    expect(anna.locator("body")).not_to_contain_text("add_order")
    assert len(shop.arrived) == 1


# A bulk job of a worker that dies.


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A listener that never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def set_consuming(module_worker: Process) -> Iterator[Callable[[bool], None]]:
    """A function that lets the module's worker consume jobs or not; afterwards it consumes them."""
    node = f"{module_worker.name}@test"

    def change(consuming: bool) -> None:
        command = app.control.add_consumer if consuming else app.control.cancel_consumer
        for queue in QUEUE_NAMES:
            assert command(queue, destination=[node], reply=True, timeout=10, limit=1)

    yield change
    change(True)


@pytest.mark.whole("postgres")
def test_a_bulk_job_continues_after_a_reload_and_after_its_worker_died(
    acme: Organization,
    owner: Page,
    silent: socket.socket,
    set_consuming: Callable[[bool], None],
    running: list[Process],
    tmp_path: Path,
) -> None:
    for number in range(4):
        admin_client.create_web_server(acme, f"web{number}")
    factories.create_http_server(acme, f"http://127.0.0.1:{silent.getsockname()[1]}/mcp", "silent")
    set_consuming(False)
    first = processes.start_worker(tmp_path, "worker2")
    running.append(first)
    owner.goto("/admin/mcp-servers/")
    owner.locator("#action-toggle").check()
    owner.get_by_role("button", name="Refresh definitions").click()
    status = owner.get_by_role("status").first
    expect(status).to_have_text("4 of 5 servers done", timeout=PATIENCE_MS)
    owner.reload()
    expect(status).to_have_text("4 of 5 servers done")
    expect(owner.locator("tr", has_text="web2")).to_contain_text("server_unreachable")
    expect(owner.locator("tr", has_text="web2")).to_contain_text(
        "Start the server, or correct the host and port"
    )

    first.kill()
    jobs = BulkJob.objects.filter(organization=acme)
    job_id = jobs.get().pk
    item = BulkJobItem.objects.get(job_id=job_id, server_name="silent")
    assert item.state == BulkJobItem.State.RUNNING
    jobs.update(lease_expires_at=timezone.now() - timedelta(seconds=1))  # the lease expired
    expect(owner.locator("[data-part=job]")).to_contain_text("No worker is running this job.")
    silent.close()
    set_consuming(True)
    run_bulk_job.delay(str(job_id))
    expect(status).to_have_text("5 of 5 servers done", timeout=PATIENCE_MS)
    expect(owner.locator("[data-part=job]")).to_contain_text("Finished")
    expect(owner.locator("[data-part=job]")).not_to_contain_text("No worker")

    owner.get_by_role("button", name="Retry 5 failed servers").click()
    expect(owner).not_to_have_url(re.compile(str(job_id)))
    expect(status).to_have_text("5 of 5 servers done", timeout=PATIENCE_MS)
