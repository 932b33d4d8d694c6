"""Sessions in the admin: started, shown step by step, continued, canceled."""

import json
import re
from typing import Any
from uuid import uuid4

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db.models import QuerySet
from django.template.loader import render_to_string
from django.utils import timezone, translation

from agents.admin import session_steps
from agents.admin.session_steps import load_steps
from agents.attachments import MAX_ATTACHMENTS, MAX_TEXT_BYTES, MAX_TOTAL_BYTES
from agents.images import MAX_IMAGE_BYTES
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Agent, Inbox, Session, Step
from agents.sessions.services import start_session
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.text.pdf_files import MAX_PDF_BYTES
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories
from tests.agents.admin.test_audit import create_call

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def session(acme: Organization, helper: Agent) -> Session:
    return start_session(factories.build_administrator(acme), helper, "What time is it?")


@pytest.fixture
def operator(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OPERATOR)


def create_step(session: Session, kind: str, state: str = "done", **payload: Any) -> Step:
    step: Step = Step.objects.create(
        session=session,
        seq=session.steps.count() + 1,
        kind=kind,
        state=state,
        payload=payload,
        call_id=uuid4() if kind == "call" else None,
        index=session.steps.count(),
        finished_at=timezone.now(),
    )
    return step


def test_a_new_session_can_begin_with_a_suggested_message(
    operator: admin_client.AdminClient, helper: Agent
) -> None:
    page = operator.get("agents_agent_change", helper.pk)
    suggested = re.findall(r'form="new-session"\s+name="text"\s+value="([^"]+)"', page)
    assert suggested[0] == "What can you do?"
    # The button follows the empty field of the form.
    operator.post("agents_agent_start", helper.pk, text=["", suggested[0]])
    assert Session.objects.get().inbox.get().payload["text"] == suggested[0]


def test_a_message_starts_a_session(helper: Agent, operator: admin_client.AdminClient) -> None:
    page = operator.post("agents_agent_start", helper.pk, text="What time is it?")
    session = Session.objects.get()
    assert session.started_by_id == str(operator.user.pk)
    assert "queued" in page
    assert f'data-live="/api/sessions/{session.pk}/events"' in page


def test_a_message_can_have_files(helper: Agent, operator: admin_client.AdminClient) -> None:
    files = [SimpleUploadedFile("a.txt", b"hi"), SimpleUploadedFile("b.exe", b"\xff")]
    operator.post("agents_agent_start", helper.pk, text="Look.", attachments=files)
    assert "is neither UTF-8 text, nor an image, nor a PDF file" in " ".join(operator.messages)
    assert not Session.objects.exists()
    files = [SimpleUploadedFile("a.txt", b"hi")]
    operator.post("agents_agent_start", helper.pk, text="Look.", attachments=files)
    session = Session.objects.get()
    [file] = session.inbox.get().payload["files"]
    create_step(session, "message", text="Look.", by="anna", files=[file])
    page = operator.get("agents_session_change", session.pk)
    url = f"{admin_client.build_url('agents_session_file', session.pk)}?sha256={file['sha256']}"
    assert url in page
    assert operator.client.get(url).content == b"hi"


def test_a_reply_is_shown_as_markdown_and_copied_as_it_was_written(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "model", text="**b** <i>raw</i>\n\n```\ncode\n```")
    create_step(session, "model", text="> " * 100 + "deep")
    page = operator.get("agents_session_change", session.pk)
    assert "<strong>b</strong> &lt;i&gt;raw&lt;/i&gt;" in page
    assert '<pre hidden id="step-text-1">**b** &lt;i&gt;raw&lt;/i&gt;' in page
    assert page.count("data-copies-code") == 1
    assert '<div class="bb-message" id="step-text-2">' in page, "too complex, so plain text"


def test_the_oldest_running_step_is_shown_with_its_start(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "call", name="mcp_time_now", arguments={})
    running = create_step(session, "call", state="intent", name="mcp_git_log", arguments={})
    create_step(session, "call", state="intent", name="mcp_git_show", arguments={})
    Session.objects.update(status="running")
    page = operator.get("agents_session_steps", session.pk)
    now = page[page.index('class="bb-chat-now"') :].split("</time>")[0]
    assert ">mcp_git_log</b>" in now
    assert f'datetime="{timezone.localtime(running.started_at):%Y-%m-%dT%H:%M:%S}' in now
    Session.objects.update(status="done")
    assert "bb-chat-now" not in operator.get("agents_session_steps", session.pk)


def test_the_page_checks_files_by_the_limits_of_the_server() -> None:
    html = render_to_string("admin/sessions/attach_files.html")
    limits = {name: int(value) for name, value in re.findall(r'data-most-([a-z-]+)="(\d+)"', html)}
    assert limits == {
        "files": MAX_ATTACHMENTS,
        "bytes": MAX_TOTAL_BYTES,
        "binary-bytes": MAX_IMAGE_BYTES,
        "text-bytes": MAX_TEXT_BYTES,
    }
    assert MAX_IMAGE_BYTES == MAX_PDF_BYTES


def test_a_message_is_resent_in_place(session: Session, operator: admin_client.AdminClient) -> None:
    create_step(session, "message", text="first", by="anna")
    create_step(session, "model", text="answer")
    Session.objects.update(status="done")
    operator.post("agents_session_retry", session.pk, seq=1)
    assert session.inbox.latest("pk").payload == {"text": "first", "replaces": 1}
    operator.post("agents_session_retry", session.pk, seq=1, text="second")
    assert "The session is running." in " ".join(operator.messages)
    Session.objects.update(status="done")
    operator.post("agents_session_retry", session.pk, seq=1, text="second")
    assert session.inbox.latest("pk").payload == {"text": "second", "replaces": 1}


def test_replaced_steps_are_marked_and_cant_be_resent(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "message", text="first", by="anna")
    create_step(session, "model", text="answer")
    create_step(session, "message", text="second", by="anna", replaces=1)
    chat_page = load_steps(session, factories.build_administrator(session.organization))
    assert [line.superseded for line in chat_page.lines] == [True, True, False]
    page = operator.get("agents_session_change", session.pk)
    assert page.count("data-superseded") == 2
    assert page.count('name="seq"') == 2, "retry and edit of the current message"
    assert page.count('data-versions="1,3"') == 2
    assert "2 / 2" in page


def test_versions_of_a_message_end_where_an_earlier_one_was_replaced(
    session: Session,
) -> None:
    for text, replaced in (("a", 0), ("b", 0), ("b2", 2), ("a2", 1), ("a3", 4)):
        create_step(session, "message", text=text, **({"replaces": replaced} if replaced else {}))
    chat_page = load_steps(session, factories.build_administrator(session.organization))
    assert [(line.versions, line.versions_end) for line in chat_page.lines] == [
        ((1, 4, 5), None),
        ((2, 3), 4),
        ((2, 3), 4),
        ((1, 4, 5), None),
        ((1, 4, 5), None),
    ]


def test_the_rail_shows_limits_tools_and_cost(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "message", text="first", by="anna")
    for name in ("<b>add", "<b>add", "fetch"):
        create_step(session, "call", name=f"mcp_{name}", tool=name, arguments={}, server="web")
    facts = session_steps.load_session_facts(session)
    assert (facts.turns, facts.calls) == (0, 3)
    assert facts.tools == (("<b>add", "web", 2), ("fetch", "web", 1))
    for page in (
        operator.get("agents_session_change", session.pk),
        operator.get("agents_agent_change", session.agent_id, session=session.pk),
        operator.get("agents_session_steps", session.pk),
    ):
        assert "Tools used" in page
        assert 'title="&lt;b&gt;add"' in page


def test_a_call_that_was_stopped_before_it_ran_is_canceled_and_not_failed(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "call", "failed", name="mcp_web_pay", arguments={}, code="not_made")
    text = admin_client.get_text(operator.get("agents_session_steps", session.pk)).lower()
    assert "mcp_web_pay do_not_disturb_on canceled" in text
    assert "failed" not in text


def test_a_stopped_call_says_what_is_unknown_and_what_to_check(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(
        session, "call", "unknown", name="mcp_web_pay", arguments={}, code="outcome_unknown"
    )
    text = admin_client.get_text(operator.get("agents_session_steps", session.pk))
    sentence = "it may have taken effect. Check on the server before you repeat it. outcome_unknown"
    assert sentence in text
    assert text.count("outcome_unknown") == 1


def test_a_session_whose_model_reported_no_usage_has_an_unknown_cost(
    session: Session, operator: admin_client.AdminClient
) -> None:
    for page, pk in (
        ("agents_session_change", session.pk),
        ("agents_agent_sessions", session.agent_id),
        ("agents_session_changelist", None),
    ):
        text = admin_client.get_text(operator.get(page, *([pk] if pk else [])))
        assert "$0.00" not in text, page


def test_a_stopped_answer_is_shown_as_far_as_it_was_written(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "model", "failed", text="One **two** thr", code="cut_off", detail="Ended.")
    create_step(session, "end", code="cancelled")
    page = operator.get("agents_session_steps", session.pk)
    assert "<strong>two</strong>" in page
    text = admin_client.get_text(page)
    assert "Stopped" in text
    for hidden in ("cut_off", "Ended.", "Canceled"):
        assert hidden not in text


def test_codes_of_steps_are_links_to_their_documentation_and_notices_have_none(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "model", "failed", detail="No answer.", code="model_unreachable")
    create_step(session, "call", "failed", name="pay", arguments={}, code="tool_error", text="No")
    create_step(session, "notice", text="Only half.", code="answer_cut")
    page = operator.get("agents_session_steps", session.pk)
    assert "answer_cut" not in page
    assert "tool_error" not in page.partition("</summary>")[0]
    for code in ("model_unreachable", "tool_error"):
        assert re.search(rf'href="[^"]*#{code}"', page)


def test_the_error_of_a_model_turn_is_shown_once(
    session: Session, operator: admin_client.AdminClient
) -> None:
    error = {"code": "model_auth", "detail": "The key was rejected.", "remedy": "Set it."}
    create_step(session, "model", "failed", **error)
    create_step(session, "end", **error)
    page = admin_client.get_text(operator.get("agents_session_change", session.pk))
    assert page.count("The key was rejected.") == 1
    other = error | {"code": "turns_exhausted", "detail": "The turns are used up."}
    create_step(session, "end", **other)
    page = admin_client.get_text(operator.get("agents_session_change", session.pk))
    assert "The turns are used up." in page


def test_a_chat_says_once_that_its_agent_has_no_tools(
    session: Session, operator: admin_client.AdminClient
) -> None:
    text = "The agent has no tools now. The agent has no server. Attach one."
    create_step(session, "notice", code="no_tools", why="no_server", text=text)
    chat = operator.get("agents_agent_change", session.agent_id, session=session.pk)
    assert admin_client.get_text(chat).count("The agent has no server.") == 1
    attach_url = admin_client.build_url("agents_agent_servers", session.agent_id)
    for page in (chat, operator.get("agents_session_steps", session.pk)):
        notice = page.partition('data-kind="notice"')[2].partition("</article>")[0]
        assert f'href="{attach_url}"' in notice
    auditor = admin_client.sign_in(session.organization, Role.AUDITOR)
    notice = auditor.get("agents_session_steps", session.pk).partition('data-kind="notice"')[2]
    assert attach_url not in notice.partition("</article>")[0]


def test_an_answer_has_its_time_and_no_line_that_it_is_completed(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "model", text="It is noon.")
    create_step(session, "end", answer="It is noon.")
    steps = operator.get("agents_session_steps", session.pk)
    assert 'data-kind="end"' not in steps
    reply = steps.partition('data-kind="model"')[2].partition("</article>")[0]
    assert "<time" in reply
    create_step(session, "end", output={"hour": 12})
    assert "hour" in operator.get("agents_session_steps", session.pk)


def test_a_message_that_the_model_read_during_a_turn_says_so(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "message", text="first", by="ada")
    create_step(session, "call", name="time", arguments={})
    create_step(session, "message", text="second", by="ada")
    create_step(session, "model", text="It is noon.")
    create_step(session, "end")
    create_step(session, "message", text="third", by="ada")
    principal = factories.build_administrator(session.organization)
    for after in (0, 2):
        lines = load_steps(session, principal, after).lines
        assert [line.step.seq for line in lines if line.is_interjection] == [3]
    page = admin_client.get_text(operator.get("agents_session_steps", session.pk))
    assert page.count("sent while the agent was working") == 1


def test_a_call_names_who_approved_its_tool_for_the_session(
    session: Session, operator: admin_client.AdminClient
) -> None:
    step = create_step(session, "call", name="pay", arguments={})
    approval = {"approved_by": "Jonas", "approved_at": timezone.now().isoformat()}
    rows: QuerySet[AuditRow] = QuerySet(model=AuditRow)  # the model's own manager refuses
    columns = {"seq": 1_000, "digest": "0" * 64, "opened_at": timezone.now(), "decision": "ask"}
    opened = json.dumps({"details": {"approval_id": "session", **approval}})
    columns |= {"id": step.call_id, "event_type": "call", "outcome": "ok", "opened": opened}
    rows.bulk_create([AuditRow(organization_id=session.organization_id, **columns)])
    page = admin_client.get_text(operator.get("agents_session_steps", session.pk))
    assert "Approved for the session by Jonas, just now" in page


def test_a_page_marks_steps_that_later_pages_replace(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_steps, "STEPS_SHOWN", 2)
    for text in "ab":
        create_step(session, "message", text=text, by="anna")
    create_step(session, "message", text="c", by="anna", replaces=2)
    chat_page = load_steps(session, factories.build_administrator(session.organization))
    assert [line.superseded for line in chat_page.lines] == [False, True]


def test_a_session_is_exported(session: Session, operator: admin_client.AdminClient) -> None:
    create_step(session, "message", text="first", by="anna")
    assert "> first" in operator.get("agents_session_export", session.pk)
    assert '"text": "first"' in operator.get("agents_session_export", session.pk, **{"as": "json"})


def test_an_empty_message_is_refused(helper: Agent, operator: admin_client.AdminClient) -> None:
    operator.post("agents_agent_start", helper.pk, text="  ")
    assert "The message is empty." in " ".join(operator.messages)
    assert not Session.objects.exists()


def test_a_model_is_chosen_for_a_session(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    page = operator.get("agents_agent_change", helper.pk)
    assert 'name="model_endpoint"' not in page
    spec = ModelEndpointSpec(name="Small model", kind="offline")
    endpoint = save_endpoint(factories.build_administrator(acme), spec)
    page = operator.get("agents_agent_change", helper.pk)
    assert f'<option value="{endpoint.pk}">Small model</option>' in page
    page = operator.post(
        "agents_agent_start", helper.pk, text="hi", model_endpoint=str(endpoint.pk)
    )
    session = Session.objects.get()
    assert session.model_endpoint == endpoint
    assert "Small model" in operator.get("agents_session_change", session.pk)
    member = admin_client.sign_in(acme, Role.MEMBER)
    helper.members.add(member.user)
    assert "Small model" not in member.get("agents_agent_change", helper.pk)


def test_the_output_of_a_session_is_shown(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "end", answer="{}", output={"title": "<b>Issues</b>"})
    page = operator.get("agents_session_change", session.pk)
    assert "Issues" in page
    assert "<b>Issues" not in page


def test_a_member_can_chat_only_with_their_agents(acme: Organization, helper: Agent) -> None:
    member = admin_client.sign_in(acme, Role.MEMBER)
    member.post("agents_agent_start", helper.pk, text="hi", status=404)
    helper.members.add(member.user)
    member.post("agents_agent_start", helper.pk, text="hi")
    assert Session.objects.count() == 1


def test_an_auditor_can_view_but_not_run_sessions(acme: Organization, session: Session) -> None:
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    page = auditor.get("agents_session_change", session.pk)
    assert "What time is it?" in page
    assert "<textarea" not in page
    auditor.post("agents_session_send", session.pk, status=403, text="hi")
    assert Inbox.objects.count() == 1


def test_a_session_shows_each_kind_of_step(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "message", text="What time is it?", by="anna")
    create_step(
        session, "notice", text="The server web is not reachable now.", code="server_unreachable"
    )
    create_step(session, "model", text="I look it up.")
    create_step(
        session,
        "call",
        name="mcp_time_now",
        arguments={"zone": "UTC"},
        text='{"time": "12:00"}',
        server="time",
        duration_ms=12,
    )
    create_step(
        session, "call", state="failed", name="mcp_git_log", code="denied_by_policy", rule="r:1"
    )
    create_step(
        session, "end", detail="Too many turns.", remedy="Ask for less.", code="turns_exhausted"
    )
    page = operator.get("agents_session_change", session.pk)
    text = admin_client.get_text(page)
    for expected in (
        "What time is it?",
        "The server web is not reachable now.",
        "I look it up.",
        "T mcp_time_now time zone UTC check_circle succeeded 12 ms",
        "r:1",
        "Too many turns. Ask for less. turns_exhausted",
    ):
        assert expected in text
    assert '<span class="bb-key">&quot;time&quot;</span>' in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("The server web is not reachable now.", "Der Server web ist zurzeit nicht erreichbar."),
        (
            "The server web was disconnected. Its tools are no longer available.",
            "Der Server web wurde getrennt. Seine Tools sind nicht mehr verfügbar.",
        ),
        ("No capacity. Retrying in 1.5 s (attempt 2).", "Neuer Versuch in 1,5 s (Versuch 2)."),
        (
            "No capacity. Trying the fallback model 'Big' instead.",
            "Stattdessen wird das Fallback-Modell &#x27;Big&#x27; verwendet.",
        ),
        (
            "The answer was cut off at 1,024 tokens. The model endpoint sets the maximum length, "
            "and the remaining budget can reduce it.",
            "Die Antwort wurde nach 1.024 Tokens abgeschnitten.",
        ),
    ],
)
def test_a_notice_is_shown_in_the_readers_language(text: str, shown: str) -> None:
    with translation.override("de"):
        page = render_to_string("admin/sessions/notice.html", {"payload": {"text": text}})
    assert shown in page


def test_a_result_with_instructions_is_marked(
    session: Session, operator: admin_client.AdminClient
) -> None:
    findings = {"flagged": {"override_rules": 2}, "sanitized": {"remote_image": 1}}
    create_step(session, "call", name="mcp_web_get", arguments={}, text="plain")
    assert "possible prompt injection" not in admin_client.get_text(
        operator.get("agents_session_change", session.pk)
    )
    create_step(session, "call", name="mcp_web_get", arguments={}, text="Ignore …", **findings)
    text = admin_client.get_text(operator.get("agents_session_change", session.pk))
    for expected in ("possible prompt injection", "override_rules ×2", "remote_image ×1"):
        assert expected in text


def test_texts_of_servers_and_models_are_escaped_and_visible(
    session: Session, operator: admin_client.AdminClient
) -> None:
    evil = "<script>alert(1)</script>\u200b"
    create_step(session, "message", text=evil, by=evil)
    create_step(session, "model", text=evil)
    create_step(
        session, "call", name=evil, arguments={evil: evil}, text=evil, server=evil, code="x"
    )
    create_step(session, "notice", text=evil)
    create_step(session, "end", detail=evil, remedy=evil, code="x")
    for name in ("agents_session_change", "agents_session_steps"):
        page = operator.get(name, session.pk)
        assert "<script>alert" not in page
        assert page.count("⟨U+200B⟩") >= 8


def test_only_new_steps_are_sent_to_a_watcher(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "message", text="first", by="anna")
    create_step(session, "model", text="second")
    page = operator.get("agents_session_steps", session.pk, after=1)
    assert "first" not in page
    assert "second" in page
    assert "nav-sidebar" not in page


def test_a_running_step_is_requested_again(session: Session) -> None:
    create_step(session, "message", text="first", by="anna")
    create_step(session, "model", state="intent", text="gro")
    create_step(session, "call", name="x", arguments={})
    assert load_steps(session, factories.build_administrator(session.organization)).after == 1


def test_a_step_that_changed_has_another_version(session: Session) -> None:
    row = create_step(session, "model", state="intent", text="gro")
    [before] = load_steps(session, factories.build_administrator(session.organization)).lines
    Step.objects.filter(pk=row.pk).update(payload={"text": "growing"})
    [after] = load_steps(session, factories.build_administrator(session.organization)).lines
    assert before.version != after.version


def test_a_long_session_shows_its_end_and_links_to_its_beginning(
    session: Session, operator: admin_client.AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_steps, "STEPS_SHOWN", 2)
    for number in range(5):
        create_step(session, "model", text=f"number-{number}")
    page = operator.get("agents_session_change", session.pk)
    assert "number-4" in page
    assert "number-2" not in page
    assert "?after=1" in page
    assert "number-1" in operator.get("agents_session_change", session.pk, after=1)


def test_an_idle_session_isnt_polled(session: Session, operator: admin_client.AdminClient) -> None:
    Session.objects.update(status="done")
    assert 'data-rests="true"' in operator.get("agents_session_change", session.pk)


def test_a_message_to_an_idle_session_queues_it_again(
    session: Session, operator: admin_client.AdminClient
) -> None:
    Session.objects.update(status="done")
    operator.post("agents_session_send", session.pk, text="And in Tokyo?")
    session.refresh_from_db()
    assert session.status == "queued"


def test_a_session_is_canceled(session: Session, operator: admin_client.AdminClient) -> None:
    assert ">Stop<" in operator.get("agents_session_change", session.pk).replace("\n", "")
    operator.post("agents_session_cancel", session.pk)
    session.refresh_from_db()
    assert session.status == "cancelled"
    assert "Session stopped" in " ".join(operator.messages)


def test_the_list_is_filtered_by_status(
    acme: Organization, helper: Agent, session: Session, operator: admin_client.AdminClient
) -> None:
    start_session(factories.build_administrator(acme), helper, "Another question")
    Session.objects.filter(pk=session.pk).update(status="failed", error_code="model_unreachable")
    page = admin_client.get_text(operator.get("agents_session_changelist", status__in="failed"))
    assert "What time is it?" in page
    assert "Another question" not in page


def test_the_agents_tabs_show_its_sessions(
    helper: Agent, session: Session, operator: admin_client.AdminClient
) -> None:
    assert "What time is it?" in operator.get("agents_agent_sessions", helper.pk)
    page = operator.get("agents_agent_change", helper.pk, session=str(session.pk))
    assert 'aria-current="true">What time is it?' in page
    operator.get("agents_agent_change", helper.pk, session=str(uuid4()), status=404)


def test_the_timeline_draws_turns_calls_and_waits(acme: Organization, helper: Agent) -> None:
    session, approval = factories.create_waiting_session(helper, "Add <b>it</b> up")
    page = admin_client.sign_in(acme, Role.OWNER).get("agents_session_timeline", session.pk)
    assert approval.label in page
    assert 'class="bb-waiting" data-tone="warn"' in page
    # The legend has the same text without a duration.
    assert re.search(r"\d (ms|s|min) waiting for a person", page)


def test_the_timeline_says_how_a_call_and_a_message_ended(
    acme: Organization, session: Session
) -> None:
    call = create_call(
        acme,
        rule="policy:all:deny mcp:now",
        decision="deny",
        outcome="refused",
        code="denied_by_policy",
        tool_name="now",
        server_name="clock",
        agent_id=session.agent_id,
    )
    step = create_step(session, "call", name="mcp_clock_now")
    Step.objects.filter(pk=step.pk).update(state="failed", call_id=call.pk)
    create_step(session, "model")
    create_step(session, "end")
    html = admin_client.sign_in(acme, Role.OWNER).get("agents_session_timeline", session.pk)
    [row] = re.findall(r'<tr data-kind="call">.*?</tr>', html, re.DOTALL)
    text = " ".join(admin_client.get_text(row).split())
    assert "now clock" in text
    assert "Denied" in text
    assert "Failed" not in text
    assert "The tool now of the server clock is set to Deny for this agent." in row
    assert "denied_by_policy" not in text
    assert "Model turn 0" in html
    assert "Completed" in admin_client.get_text(html)


def test_a_timeline_uses_the_same_queries_for_any_length(
    session: Session, operator: admin_client.AdminClient, django_assert_max_num_queries: Any
) -> None:
    for number in range(30):
        create_step(session, ("message", "model", "call", "end")[number % 4], text="x", name="now")
    with django_assert_max_num_queries(15):
        page = operator.get("agents_session_timeline", session.pk)
    assert page.count('data-kind="message"') == 8


def test_a_member_cant_see_timelines_of_others(
    acme: Organization, helper: Agent, session: Session
) -> None:
    member = admin_client.sign_in(acme, Role.MEMBER)
    helper.members.add(member.user)
    member.get("agents_session_timeline", session.pk, status=404)


def test_thinking_is_shown_collapsed(session: Session, operator: admin_client.AdminClient) -> None:
    create_step(session, "model", text="It is noon.", thinking="<b>Let me see")
    page = operator.get("agents_session_change", session.pk)
    assert '<details class="bb-thinking">' in page
    assert "&lt;b&gt;Let me see" in page


def test_an_answer_without_thinking_has_no_place_for_it(
    session: Session, operator: admin_client.AdminClient
) -> None:
    create_step(session, "model", text="It is noon.")
    assert "bb-thinking" not in operator.get("agents_session_change", session.pk)


def test_an_exported_session_is_imported(
    acme: Organization, helper: Agent, operator: admin_client.AdminClient
) -> None:
    assert "Import session" in operator.get("agents_agent_sessions", helper.pk)
    message = b'{"steps": [{"seq": 1, "kind": "message", "state": "done", "text": "Hi"}]}'
    page = operator.post(
        "agents_agent_import_session", helper.pk, file=SimpleUploadedFile("s.json", message)
    )
    assert "imported this session from a file" in page
    assert Session.objects.get().status == "cancelled"
    operator.post("agents_agent_import_session", helper.pk, file=SimpleUploadedFile("s", b"{}"))
    assert "The file has no list of steps." in " ".join(operator.messages)
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    assert "Import session" not in auditor.get("agents_agent_sessions", helper.pk)


def test_an_output_schema_is_entered_for_a_message(
    helper: Agent, operator: admin_client.AdminClient
) -> None:
    assert 'name="output_schema"' in operator.get("agents_agent_change", helper.pk)
    operator.post("agents_agent_start", helper.pk, text="hi", output_schema="[]")
    assert "a JSON object. Enter a JSON Schema" in " ".join(operator.messages)
    schema = '{"type": "object", "properties": {"title": {"type": "string"}}}'
    operator.post("agents_agent_start", helper.pk, text="hi", output_schema=schema)
    session = Session.objects.get()
    operator.post("agents_session_send", session.pk, text="more", output_schema=schema)
    operator.post("agents_session_send", session.pk, text="plain", output_schema=" ")
    sent = [item.payload.get("output_schema") for item in Inbox.objects.order_by("pk")]
    assert sent == [json.loads(schema), json.loads(schema), None]
