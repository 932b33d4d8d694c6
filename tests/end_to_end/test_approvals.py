"""A call waits for approval, and is answered in the inbox or in its chat, with a real worker."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from agents.approvals.services import resolve_approval
from agents.models import Approval, Session
from agents.policies.services import PolicySpec, set_policy
from agents.sessions.export import build_report
from agents.sessions.services import start_session
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import build_user_principal
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server
from tests import admin_client, factories
from tests.end_to_end.accounts import create_member, sign_in
from tests.end_to_end.conftest import get_status
from tests.ledger_chain import verify_whole_chain
from tests.processes import Process, Web
from tests.wait import eventually

pytestmark = [pytest.mark.browser, pytest.mark.worker]
PATIENCE_MS = 60_000
COUNT = "mcp_workshop_count"
REASON = "Not today: <b>ask</b> again tomorrow."
# A tab that is in the background until `showTab()` brings it to the front, a minute later.
BACKGROUND_TAB_SCRIPT = """(() => {
  let hidden = true;
  Object.defineProperty(document, "hidden", { get: () => hidden });
  window.showTab = () => {
    hidden = false;
    performance.now = () => 60_000;
    document.dispatchEvent(new Event("visibilitychange"));
  };
})()"""


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    """The file to which the workshop writes a line for each counted effect."""
    file = tmp_path / "workshop"
    file.touch()
    return file


@pytest.fixture
def waiting_session(
    acme: Organization, effects: Path, module_worker: Process, add_program: Callable[..., Server]
) -> Session:
    """A session that an operator started, and that waits for somebody else's approval."""
    agent = factories.create_agent(acme)
    add_program(agent, "workshop", "stdio")
    set_policy(factories.build_administrator(acme), agent, PolicySpec("all", ask=(COUNT,)))
    operator = create_member(acme, Role.OPERATOR)
    session = start_session(
        build_user_principal(operator, acme), agent, f'/{COUNT} {{"what": "one"}}'
    )
    eventually(lambda: get_status(session) == Session.Status.WAITING, within=60)
    assert session.runner_id is None, "a worker holds it"
    return session


@pytest.fixture
def rita(acme: Organization, module_page: Page, module_web: Web) -> Page:
    """The browser of a reviewer, who approves calls of others."""
    user = create_member(acme, Role.REVIEWER, f"rita-{acme.slug}")
    sign_in(module_page, user, acme, module_web.url)
    return module_page


def open_approval(page: Page) -> None:
    """Open the only approval from the inbox in the sidebar."""
    page.goto("/")
    page.get_by_role("link", name="Approvals").first.click()
    item = page.locator("[data-inbox-item]")
    expect(item).to_contain_text("Helper")  # which also requires that it is the only one
    item.get_by_role("link", name="count").click()
    expect(page).to_have_url(re.compile("/change/"))  # the details are loaded again
    expect(page.get_by_role("heading", name="count")).to_be_visible()
    expect(page.get_by_role("region", name="Arguments")).to_contain_text('"what": "one"')


def test_a_call_is_approved_from_the_inbox_and_its_session_continues(
    acme: Organization, waiting_session: Session, rita: Page, effects: Path
) -> None:
    open_approval(rita)
    assert effects.read_text() == ""
    rita.keyboard.press("a")
    expect(rita.locator("[data-inbox-details]")).to_contain_text("pproved by rita")
    expect(rita.locator("[data-inbox-items]")).to_contain_text("No pending approvals")
    expect(rita.locator("[data-inbox-details]")).to_be_visible()
    expect(rita.locator("[data-live-count=calls]").first).to_be_hidden()  # without a reload
    eventually(lambda: get_status(waiting_session) == Session.Status.DONE, within=60)
    assert effects.read_text() == "one\n"
    rita.goto(f"/admin/sessions/{waiting_session.pk}/change/")
    rita.locator("details.bb-call summary").first.click()
    expect(rita.locator("details.bb-call").first).to_contain_text("counted one")
    assert Approval.objects.get(session=waiting_session).decided_by == f"rita-{acme.slug}"
    rows = AuditRow.objects.filter(organization_id=acme.pk, tool_name="count", outcome="ok")
    assert rows.count() == 1
    assert verify_whole_chain(acme.pk).ok


@pytest.mark.whole("postgres")
def test_a_call_is_denied_with_a_reason_that_the_model_reads(
    acme: Organization, waiting_session: Session, rita: Page, effects: Path
) -> None:
    open_approval(rita)
    rita.keyboard.press("d")
    rita.get_by_label("Message to model").fill(REASON)
    rita.keyboard.press("Control+Enter")
    expect(rita.locator(".bb-server-text").first).to_have_text(REASON)
    eventually(lambda: get_status(waiting_session) == Session.Status.DONE, within=60)
    assert effects.read_text() == ""
    (call,) = build_report(waiting_session.pk)["calls"]
    assert REASON in str(call)
    assert Approval.objects.get(session=waiting_session).state == Approval.State.DENIED
    assert verify_whole_chain(acme.pk).ok


def test_selected_calls_are_answered_in_a_dialog_of_the_inbox(
    waiting_session: Session, rita: Page, effects: Path
) -> None:
    rita.goto("/admin/approvals/")
    rita.keyboard.press("x")
    expect(rita.get_by_role("button", name="Deny 1 D")).to_be_enabled()
    rita.keyboard.press("d")
    dialog = rita.get_by_role("dialog")
    expect(dialog).to_contain_text("Deny this call?")
    rita.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert Approval.objects.get(session=waiting_session).state == Approval.State.WAITING
    rita.keyboard.press("d")
    message = dialog.get_by_label("Message to model")
    expect(message).to_be_focused()
    message.fill(REASON)
    rita.keyboard.press("Control+Enter")
    expect(rita.locator(".bb-notice")).to_contain_text("1 call denied.")
    expect(rita).to_have_url(re.compile("/admin/approvals/$"))
    expect(rita.locator("[data-inbox-items]")).to_contain_text("No pending approvals")
    expect(rita.locator("[data-inbox-details]")).to_be_hidden()  # there is none to select
    eventually(lambda: get_status(waiting_session) == Session.Status.DONE, within=60)
    assert effects.read_text() == ""


def test_changed_arguments_stay_in_the_form_when_they_are_invalid(
    waiting_session: Session, rita: Page, effects: Path
) -> None:
    open_approval(rita)
    rita.keyboard.press("e")
    arguments = rita.locator("textarea[name=arguments]")
    rita.evaluate("document.dispatchEvent(new CustomEvent('bonobot:toast', {detail: 'count'}))")
    form, toast = rita.locator(".bb-change-form"), rita.locator(".bb-notice")
    boxes = form.bounding_box(), toast.bounding_box()
    assert boxes[1]["y"] + boxes[1]["height"] <= boxes[0]["y"], "the toast covers the form"
    arguments.fill('{"what": ')
    rita.get_by_role("button", name="Approve changed call").click()
    expect(rita.get_by_role("alert")).to_contain_text("aren't valid JSON")
    expect(arguments).to_have_value('{"what": ')
    arguments.fill('{"what": "two"}')
    rita.keyboard.press("Control+Enter")
    expect(rita.locator("[data-inbox-details]")).to_contain_text("Approved with changes by rita")
    eventually(lambda: get_status(waiting_session) == Session.Status.DONE, within=60)
    assert effects.read_text() == "two\n"


def test_only_the_changed_call_can_be_approved_while_its_arguments_are_changed(
    waiting_session: Session, rita: Page
) -> None:
    open_approval(rita)
    bar = rita.locator("[data-inbox-details] .bb-actions")
    check_that_changes_are_kept(rita, bar.locator("button[value=approve]"))
    rita.goto(f"/admin/sessions/{waiting_session.pk}/change/")
    answers = rita.locator(".bb-answers").first
    check_that_changes_are_kept(rita, answers.locator("button[value=approve]"))
    assert Approval.objects.get(session=waiting_session).state == Approval.State.WAITING


def check_that_changes_are_kept(page: Page, approve: Locator) -> None:
    """Try to approve the call as it was, with its arguments changed, and discard the changes."""
    page.locator("body").press("e")
    arguments = page.locator("[data-answers] textarea[name=arguments]")
    arguments.fill('{"what": "two"}')
    expect(approve).to_have_attribute("aria-disabled", "true")
    arguments.press("Escape")  # closes the form, with the changes
    expect(arguments).to_be_hidden()
    page.locator("body").press("a")
    expect(arguments).to_be_focused()
    expect(arguments).to_have_value('{"what": "two"}')
    approve.click(force=True)
    expect(arguments).to_have_value('{"what": "two"}')
    page.get_by_role("button", name="Discard changes").click()
    expect(arguments).to_be_hidden()
    expect(approve).not_to_have_attribute("aria-disabled", "true")


def test_calls_are_new_until_their_rows_are_in_view(waiting_session: Session, rita: Page) -> None:
    rita.goto("/admin/approvals/")
    items, new = rita.locator("[data-inbox-item]"), rita.locator("[data-inbox-new]")
    expect(rita.locator("[data-live-state=on]").first).to_be_attached()
    factories.create_approval(waiting_session.agent, waiting_session)
    expect(items).to_have_count(2, timeout=PATIENCE_MS)
    expect(new).to_be_hidden()
    for _ in range(30):
        factories.create_approval(waiting_session.agent, waiting_session)
    expect(items).to_have_count(32, timeout=PATIENCE_MS)
    expect(new).to_have_text(re.compile(r"^\d+ new$"))
    for item in items.all():
        item.scroll_into_view_if_needed()
    expect(new).to_be_hidden()


def test_a_list_in_a_background_tab_is_up_to_date_when_it_is_shown(
    waiting_session: Session, rita: Page
) -> None:
    organization = waiting_session.organization
    admin_client.create_web_server(organization, "web0")
    rita.add_init_script(BACKGROUND_TAB_SCRIPT)
    rita.goto("/admin/mcp-servers/")
    admin_client.create_web_server(organization, "web1")
    rita.evaluate("showTab()")
    expect(rita.get_by_text("1 new", exact=True)).to_be_visible(timeout=PATIENCE_MS)


def test_a_message_is_directly_above_the_buttons_and_a_key_lists_the_shortcuts(
    waiting_session: Session, rita: Page
) -> None:
    open_approval(rita)
    rita.evaluate("document.dispatchEvent(new CustomEvent('bonobot:toast', {detail: 'Hello'}))")
    toast = rita.locator(".bb-notice").bounding_box()
    buttons = rita.locator("[data-inbox-details] .bb-actions").bounding_box()
    assert toast
    assert buttons
    assert 0 <= buttons["y"] - toast["y"] - toast["height"] < 40
    rita.keyboard.press("?")
    shortcuts = rita.get_by_role("dialog", name="Keyboard shortcuts")
    expect(shortcuts).to_contain_text("Approve or deny the call")
    rita.keyboard.press("Escape")
    expect(shortcuts).to_be_hidden()
    assert Approval.objects.get(session=waiting_session).state == Approval.State.WAITING


def test_a_call_that_was_answered_meanwhile_shows_its_answer(
    acme: Organization, waiting_session: Session, rita: Page
) -> None:
    open_approval(rita)
    approval = Approval.objects.get(session=waiting_session)
    resolve_approval(factories.create_member(acme, Role.REVIEWER, "vera"), approval, "deny")
    rita.keyboard.press("a")
    details = rita.locator("[data-inbox-details]")
    expect(details.get_by_role("alert")).to_be_visible()
    expect(details).to_contain_text("enied by vera")
    expect(details.locator(".bb-actions")).to_have_count(0)


@pytest.mark.whole("postgres")
def test_an_approval_for_the_session_continues_it_on_the_open_page(
    waiting_session: Session, rita: Page, effects: Path
) -> None:
    rita.goto(f"/admin/sessions/{waiting_session.pk}/change/")
    call = rita.locator("details.bb-call")
    expect(call).to_contain_text("pending approval")
    call.locator("summary", has_text="Approve for this session").click()
    call.get_by_role("button", name="Approve for this session").click()
    expect(rita.locator("[data-part=state]")).to_contain_text("completed", timeout=PATIENCE_MS)
    expect(rita.locator("details.bb-call").first).to_contain_text("counted one")
    assert effects.read_text() == "one\n"
    assert waiting_session.grants.count() == 1


def test_a_pending_call_is_answered_with_keys_in_its_chat(
    waiting_session: Session, rita: Page, effects: Path
) -> None:
    rita.goto(f"/admin/sessions/{waiting_session.pk}/change/")
    call = rita.locator("details.bb-call")
    message = call.get_by_label("Message to model")
    rita.keyboard.press("d")
    expect(message).to_be_focused()
    rita.keyboard.press("a")  # is typed
    expect(message).to_have_value("a")
    rita.keyboard.press("Escape")
    expect(message).to_be_hidden()
    rita.keyboard.press("a")
    expect(rita.locator("[data-part=state]")).to_contain_text("completed", timeout=PATIENCE_MS)
    assert effects.read_text() == "one\n"


def test_arguments_are_changed_in_the_chat_and_stay_there_while_they_arent_json(
    rita: Page, waiting_session: Session, effects: Path
) -> None:
    rita.goto(f"/admin/sessions/{waiting_session.pk}/change/")
    rita.locator("body").press("e")
    arguments = rita.get_by_label("Arguments")
    expect(arguments).to_be_focused()
    arguments.fill('{"what": ')
    apply = rita.get_by_role("button", name="Approve changed call")
    apply.click()
    expect(arguments).to_have_value('{"what": ')
    assert arguments.evaluate("field => field.validationMessage") == "Enter a JSON object."
    arguments.fill('{"what": "two"}')
    apply.click()
    expect(rita.locator("body")).to_contain_text("Approved with changed arguments")
    eventually(lambda: get_status(waiting_session) == Session.Status.DONE, within=60)
    assert effects.read_text().splitlines() == ["two"]
