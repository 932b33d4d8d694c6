"""`bonobot agents chat|retry|export-session`: with a pipe, and in a real terminal."""

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
from agents.models import Runner, Session, Step
from agents.sessions import services as sessions
from agents.sessions.events import SessionEvent
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
    """A real server, discovered, approved, and attached to the agent."""
    return factories.approve_server(acme, factories.create_stdio_server(acme), agent)


@pytest.fixture
def chat_through_pipe(bonobot, agent, monkeypatch):
    """A function that sends lines to a chat through a pipe."""

    def send_lines(*lines, options=()):
        monkeypatch.setattr("sys.stdin", StringIO("".join(f"{line}\n" for line in lines)))
        return bonobot("agents", "chat", "helper", *options)

    return send_lines


def test_a_chat_from_a_pipe_has_one_message_per_line_and_commands(
    time_server, chat_through_pipe, tmp_path
):
    notes = tmp_path / "notes.txt"
    notes.write_text("At noon.")
    export = tmp_path / "talk.md"
    result = chat_through_pipe(
        "What time is it in Asia/Tokyo?",
        "/edit What time is it in Europe/Paris?",
        f"/attach {notes}",
        "//help me",
        f"/export {export}",
        "/show",
        "/session",
        "/rety",
        "/quit",
        "never said",
    )
    assert result.status == 0, result.out + result.err
    assert result.out.count("✓ mcp_time_get_current_time") == 3, "two calls, and one shown again"
    assert "Attached to the next message: notes.txt." in result.out
    assert "Did you mean /retry?" in result.out
    session = Session.objects.get()
    assert f"--session {session.pk}" in result.out
    messages = [message.payload for message in session.steps.filter(kind="message").order_by("seq")]
    assert [(message["text"], message.get("replaces")) for message in messages] == [
        ("What time is it in Asia/Tokyo?", None),
        ("What time is it in Europe/Paris?", 1),
        ("/help me", None),
    ]
    assert messages[2]["files"][0]["name"] == "notes.txt"
    exported = export.read_text()
    assert "> What time is it in Europe/Paris?" in exported
    assert "> What time is it in Asia/Tokyo?" not in exported


def test_a_chat_continues_a_session_and_prints_json_results(chat_through_pipe, agent):
    session = factories.create_answered_session(agent)
    result = chat_through_pipe(
        "hello", "", "/retry", options=("--session", str(session.pk), "--json")
    )
    results = [json.loads(line) for line in result.out.splitlines()]
    assert [(row["id"], row["status"]) for row in results] == [(str(session.pk), "done")] * 3
    assert session.steps.filter(kind="message").count() == 3


def test_problems_are_printed_and_the_chat_continues(chat_through_pipe, tmp_path):
    (tmp_path / "long").write_bytes(b"x" * (MAX_TEXT_BYTES + 1))
    result = chat_through_pipe(
        "/retry", "/edit", "/attach nothing", f"/attach {tmp_path / 'long'}", "hello", "/show"
    )
    assert result.status == 1
    for code in ("(message): No message was sent", "unusable_file (--attach)", "(attachments)"):
        assert code in result.err
    assert "No calls yet." in result.err


def test_ctrl_c_while_sending_cancels_the_turn_and_not_the_chat(
    time_server, chat_through_pipe, monkeypatch
):
    def start_and_interrupt(*arguments, **options):
        session = sessions.start_session(*arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return session

    monkeypatch.setattr(chat, "start_session", start_and_interrupt)
    result = chat_through_pipe("What time is it in Asia/Tokyo?", "hello")
    assert "Canceling" in result.out + result.err, result
    session = Session.objects.get()
    assert session.steps.filter(kind="message").order_by("seq").last().payload["text"] == "hello"
    assert session.status == "done"


def test_a_session_of_another_agent_is_refused(bonobot, agent, acme):
    session = factories.create_answered_session(factories.create_agent(acme, "other"))
    result = bonobot("agents", "chat", "helper", "--session", str(session.pk), "--json")
    assert (result.status, result.error["field"]) == (1, "--session")


def test_a_message_is_retried_and_the_session_exported(bonobot, agent, tmp_path):
    session = factories.create_answered_session(agent)
    result = bonobot("agents", "retry", str(session.pk), "--message", "1", "--text", "Hi", "--json")
    assert (result.status, result.json["status"]) == (0, "done")
    assert session.steps.get(seq=4).payload["replaces"] == 1
    result = bonobot("agents", "export-session", str(session.pk), "--as", "json")
    assert [step["superseded"] for step in result.json["steps"]][:4] == [True, True, True, False]
    file = tmp_path / "talk.md"
    bonobot("agents", "export-session", str(session.pk), "--output", str(file))
    assert "> Hi" in file.read_text()


# --- rendering


def render(renderable, width=80):
    console = Console(file=StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue()


def test_a_call_is_shown_short_or_complete():
    text = json.dumps({"lines": list(range(40))})
    data = {"seq": 7, "state": "done", "name": "mcp_x", "arguments": {"a": 1}, "text": text}
    short, complete = render(render_call(data)), render(render_call(data, full=True))
    assert "… 32 more lines" in short
    assert "39" in complete
    assert "more lines" not in complete
    assert "#7" in short


def test_hidden_characters_of_servers_are_shown():
    assert "click (https://evil.example/x)" in render(
        render_model_text("[click](https://evil.example/x)", formatted=True)
    )
    data = {
        "seq": 1,
        "state": "failed",
        "name": "\u202ex",
        "text": "\x1b[31mred\u200b",
        "code": "x",
    }
    text = render(render_call(data))
    assert "⟨U+202E⟩x" in text
    assert "⟨U+001B⟩[31mred⟨U+200B⟩" in text


def test_parallel_calls_are_drawn_once_each():
    cli = CommandContext(org=None, as_json=False, stdout=StringIO(), stderr=StringIO())
    renderer = SessionRenderer(cli, show_answers=True)
    first, second = (
        {"seq": seq, "kind": "call", "state": "intent", "name": f"call-{seq}"} for seq in (1, 2)
    )
    finished = second | {"state": "done"}
    renderer.handle_events([SessionEvent("call", first), SessionEvent("call", second)])
    renderer.handle_events(
        [SessionEvent("progress", {"seq": 1, "done": 1, "total": 2, "message": ""})]
    )
    renderer.handle_events([SessionEvent("call", finished)])
    renderer.handle_events(
        [SessionEvent("call", first | {"state": "done"}, 1), SessionEvent("call", finished, 2)]
    )
    assert re.findall(r"call-\d", cli.out.file.getvalue()) == ["call-2", "call-1"]
    assert renderer.last_seq == 2


# --- in a real terminal


@pytest.fixture
def waiting_agent(acme):
    """An agent with a tool that waits for a given time."""
    command = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}
    spec = ServerSpec(name="workshop", transport_type="stdio", endpoint_config=command)
    agent = factories.create_agent(acme)
    factories.approve_server(acme, create_server(factories.build_administrator(acme), spec), agent)
    return agent


# The last output of a chat that waits for a line.
PROMPT = r"> \Z"


class Terminal:
    """A chat in a separate process, with a terminal."""

    def __init__(self, agent):
        # A runner of this process would count as a worker and run the chat's sessions.
        runtime.close_runtime()
        assert not Runner.objects.filter(stopped_at=None).exists()
        pid, self._descriptor = pty.fork()
        if pid == 0:
            os.chdir(ROOT)
            command = [sys.executable, "manage.py", "agents", "chat", agent]
            os.execve(command[0], command, processes.build_environment({"TERM": "xterm"}))  # noqa: S606
        self._pid = pid
        self.output = ""
        os.set_blocking(self._descriptor, False)

    def type(self, text):
        os.write(self._descriptor, text.encode())

    def wait_for(self, pattern):
        """Wait until a pattern is printed, and discard the output up to it."""

        def search():
            with suppress(OSError):
                self.output += os.read(self._descriptor, 65_536).decode(errors="replace")
            return re.search(pattern, self.output)

        try:
            end = eventually(search, within=30, what=f"{pattern!r}").end()
        except AssertionError as error:
            raise AssertionError(f"{error} in {self.output[-2000:]!r}") from None
        self.output = self.output[end:]

    def wait_for_exit(self):
        """Wait for the process and return its exit status."""

        def find_status():
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            return (status,) if pid else None

        (status,) = eventually(find_status, within=30, what="the end of the chat")
        os.close(self._descriptor)
        return os.waitstatus_to_exitcode(status)


def test_ctrl_c_cancels_the_turn_and_not_the_chat(waiting_agent):
    terminal = Terminal("helper")
    terminal.wait_for(PROMPT)
    terminal.type('/mcp_workshop_wait {"seconds": 600}\n')
    eventually(Step.objects.filter(kind="call").exists, within=30)
    terminal.type("\x03")
    terminal.wait_for(rf"Canceled\.\s+{PROMPT}")
    terminal.type("hello\n")
    terminal.wait_for("language model")
    eventually(Session.objects.filter(status=Session.Status.DONE).exists, within=30)
    terminal.wait_for(PROMPT)
    terminal.type("\x0c")  # Ctrl-L draws the prompt again
    terminal.wait_for(PROMPT)
    terminal.type("\x04")
    assert terminal.wait_for_exit() == 0
    statuses = Session.objects.values_list("status", flat=True)
    assert list(statuses) == ["done"]
    assert Step.objects.filter(kind="end", payload__code="cancelled").exists()
