"""`bonobot agents chat|retry|export-session`: piped, and in a real terminal."""

import json
import os
import pty
import re
import signal
import sys
from contextlib import suppress
from io import StringIO

import pytest
from rich.console import Console

from agents.attachments import MAX_TEXT_BYTES
from agents.cli import chat
from agents.cli.sessions import SessionRenderer, render_call, render_model_text
from agents.models import Session, Step
from agents.sessions import services as sessions
from agents.sessions.events import SessionEvent
from agents.sessions.leases import has_live_runner
from bonobot.core import runtime
from bonobot.core.cli.command_group import CommandContext
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, processes
from tests.agents.conftest import WORKSHOP
from tests.parts import ROOT
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def agent(acme):
    """An agent without servers."""
    return factories.create_agent(acme, "helper")


@pytest.fixture
def time_server(acme, agent):
    """A server that was started, asked for its tools and attached to the agent."""
    return factories.approve_server(acme, factories.create_stdio_server(acme), agent)


@pytest.fixture
def piped(bonobot, agent, monkeypatch):
    """A function that says lines to a chat through a pipe."""

    def say(*lines, options=()):
        monkeypatch.setattr("sys.stdin", StringIO("".join(f"{line}\n" for line in lines)))
        return bonobot("agents", "chat", "helper", *options)

    return say


def test_a_chat_from_a_pipe_has_one_message_per_line_and_commands(time_server, piped, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("At noon.")
    talk = tmp_path / "talk.md"
    ran = piped(
        "What time is it in Asia/Tokyo?",
        "/edit What time is it in Europe/Paris?",
        f"/attach {notes}",
        "//help me",
        f"/export {talk}",
        "/show",
        "/session",
        "/rety",
        "/quit",
        "never said",
    )
    assert ran.status == 0, ran.out + ran.err
    assert ran.out.count("✓ mcp_time_get_current_time") == 3, "two calls, and one shown again"
    assert "Attached to the next message: notes.txt." in ran.out
    assert "Did you mean /retry?" in ran.out
    session = Session.objects.get()
    assert f"--session {session.pk}" in ran.out
    messages = [one.payload for one in session.steps.filter(kind="message").order_by("seq")]
    assert [(one["text"], one.get("replaces")) for one in messages] == [
        ("What time is it in Asia/Tokyo?", None),
        ("What time is it in Europe/Paris?", 1),
        ("/help me", None),
    ]
    assert messages[2]["files"][0]["name"] == "notes.txt"
    written = talk.read_text()
    assert "> What time is it in Europe/Paris?" in written
    assert "> What time is it in Asia/Tokyo?" not in written


def test_a_chat_continues_a_session_and_prints_json_results(piped, agent):
    session = factories.create_answered_session(agent)
    ran = piped("hello", "", "/retry", options=("--session", str(session.pk), "--json"))
    told = [json.loads(line) for line in ran.out.splitlines()]
    assert [(one["id"], one["status"]) for one in told] == [(str(session.pk), "done")] * 3
    assert session.steps.filter(kind="message").count() == 3


def test_problems_are_printed_and_the_chat_continues(piped, tmp_path):
    (tmp_path / "long").write_bytes(b"x" * (MAX_TEXT_BYTES + 1))
    ran = piped(
        "/retry", "/edit", "/attach nothing", f"/attach {tmp_path / 'long'}", "hello", "/show"
    )
    assert ran.status == 1
    for code in ("(message): No message was sent", "unusable_file (--attach)", "(attachments)"):
        assert code in ran.err
    assert "No calls yet." in ran.err


def test_ctrl_c_while_sending_cancels_the_turn_and_not_the_chat(time_server, piped, monkeypatch):
    def interrupted(*arguments, **options):
        session = sessions.start_session(*arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return session

    monkeypatch.setattr(chat, "start_session", interrupted)
    ran = piped("What time is it in Asia/Tokyo?", "hello")
    assert "Canceling" in ran.out + ran.err, ran
    session = Session.objects.get()
    assert session.steps.filter(kind="message").order_by("seq").last().payload["text"] == "hello"
    assert session.status == "done"


def test_a_session_of_another_agent_is_refused(bonobot, agent, acme):
    session = factories.create_answered_session(factories.create_agent(acme, "other"))
    ran = bonobot("agents", "chat", "helper", "--session", str(session.pk), "--json")
    assert (ran.status, ran.error["field"]) == (1, "--session")


def test_a_message_is_retried_and_the_session_exported(bonobot, agent, tmp_path):
    session = factories.create_answered_session(agent)
    ran = bonobot("agents", "retry", str(session.pk), "--message", "1", "--text", "Hi", "--json")
    assert (ran.status, ran.json["status"]) == (0, "done")
    assert session.steps.get(seq=4).payload["replaces"] == 1
    ran = bonobot("agents", "export-session", str(session.pk), "--as", "json")
    assert [one["superseded"] for one in ran.json["steps"]][:4] == [True, True, True, False]
    file = tmp_path / "talk.md"
    bonobot("agents", "export-session", str(session.pk), "--output", str(file))
    assert "> Hi" in file.read_text()


# --- how it looks


def drawn(thing, width=80):
    out = Console(file=StringIO(), width=width)
    out.print(thing)
    return out.file.getvalue()


def test_a_call_is_shown_short_or_complete():
    text = json.dumps({"lines": list(range(40))})
    data = {"seq": 7, "state": "done", "name": "mcp_x", "arguments": {"a": 1}, "text": text}
    short, whole = drawn(render_call(data)), drawn(render_call(data, full=True))
    assert "… 32 more lines" in short
    assert "39" in whole
    assert "more lines" not in whole
    assert "#7" in short


def test_hidden_characters_of_servers_are_shown():
    assert "click (https://evil.example/x)" in drawn(
        render_model_text("[click](https://evil.example/x)", formatted=True)
    )
    hidden = {
        "seq": 1,
        "state": "failed",
        "name": "\u202ex",
        "text": "\x1b[31mred\u200b",
        "code": "x",
    }
    shown = drawn(render_call(hidden))
    assert "⟨U+202E⟩x" in shown
    assert "⟨U+001B⟩[31mred⟨U+200B⟩" in shown


def test_parallel_calls_are_drawn_once_each():
    cli = CommandContext(org=None, as_json=False, stdout=StringIO(), stderr=StringIO())
    drawing = SessionRenderer(cli, show_answers=True)
    first, second = (
        {"seq": seq, "kind": "call", "state": "intent", "name": f"call-{seq}"} for seq in (1, 2)
    )
    done = second | {"state": "done"}
    drawing.handle_events([SessionEvent("call", first), SessionEvent("call", second)])
    drawing.handle_events(
        [SessionEvent("progress", {"seq": 1, "done": 1, "total": 2, "message": ""})]
    )
    drawing.handle_events([SessionEvent("call", done)])
    drawing.handle_events(
        [SessionEvent("call", first | {"state": "done"}, 1), SessionEvent("call", done, 2)]
    )
    assert re.findall(r"call-\d", cli.out.file.getvalue()) == ["call-2", "call-1"]
    assert drawing.last_seq == 2


# --- in a real terminal


@pytest.fixture
def helper_that_waits(acme):
    """An agent with a tool that waits for as long as it is told."""
    command = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}
    spec = ServerSpec(name="workshop", transport_type="stdio", endpoint_config=command)
    made = factories.create_agent(acme)
    factories.approve_server(acme, create_server(factories.build_administrator(acme), spec), made)
    return made


class Terminal:
    """A chat in a process of its own, with a terminal."""

    def __init__(self, agent):
        # A runner of this process would count as a worker that takes the chat's sessions.
        runtime.close_runtime()
        assert not has_live_runner()
        pid, self._end = pty.fork()
        if pid == 0:
            os.chdir(ROOT)
            command = [sys.executable, "manage.py", "agents", "chat", agent]
            os.execve(command[0], command, processes.environment({"TERM": "xterm"}))  # noqa: S606
        self._pid = pid
        self.seen = ""
        os.set_blocking(self._end, False)

    def type(self, text):
        os.write(self._end, text.encode())

    def shows(self, wanted):
        """Wait until something is shown, and forget what came before it."""

        def found():
            with suppress(OSError):
                self.seen += os.read(self._end, 65_536).decode(errors="replace")
            return re.search(wanted, self.seen)

        try:
            end = eventually(found, within=30, what=f"{wanted!r}").end()
        except AssertionError as error:
            raise AssertionError(f"{error} in {self.seen[-2000:]!r}") from None
        self.seen = self.seen[end:]

    def ended(self):
        """Wait for the end and return the exit status."""
        _, status = os.waitpid(self._pid, 0)
        os.close(self._end)
        return os.waitstatus_to_exitcode(status)


def test_ctrl_c_cancels_the_turn_and_not_the_chat(helper_that_waits):
    terminal = Terminal("helper")
    terminal.shows("> ")
    terminal.type('/mcp_workshop_wait {"seconds": 600}\n')
    eventually(Step.objects.filter(kind="call").exists, within=30)
    terminal.type("\x03")
    terminal.shows(r"Canceled\.")
    terminal.type("hello\n")
    terminal.shows("language model")
    terminal.shows("> ")
    terminal.type("\x04")
    assert terminal.ended() == 0
    statuses = Session.objects.values_list("status", flat=True)
    assert list(statuses) == ["done"]
    assert Step.objects.filter(kind="end", payload__code="cancelled").exists()
