"""The command `agents chat`: a chat with an agent, in a terminal or pipe.

Ctrl-C cancels the running turn and keeps the chat open; Ctrl-D leaves it. Pending approvals are
asked in the chat.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import FrameType

from agents.attachments import Attachment
from agents.cli import approvals
from agents.cli.sessions import (
    MODEL_ARGUMENT,
    SessionRenderer,
    get_session,
    read_attachments,
    render_call,
    render_model_text,
    show_session_steps,
    write_text_file,
)
from agents.models import Agent, ModelEndpoint, Session, Step
from agents.sessions.events import build_step_data
from agents.sessions.export import build_filename, build_report, export_session
from agents.sessions.history import list_current_steps
from agents.sessions.services import (
    cancel_session,
    find_selectable_endpoint,
    require_run_permission,
    resend_message,
    send_message,
    start_session,
)
from agents.sessions.worker import get_session_runner
from bonobot.core.cli.command_group import Argument, CommandContext, CommandFailed, CommandVerb
from bonobot.core.problems import InvalidInput, NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Delay Ctrl-C until the block has ended, then raise KeyboardInterrupt.

    Works in the main thread only. If the block raises, its exception wins.
    """
    interrupted = False

    def record_signal(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True

    previous_handler = signal.signal(signal.SIGINT, record_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    if interrupted:
        raise KeyboardInterrupt


# Steps of an existing session that are shown at the start.
STEPS_SHOWN = 12
PROMPT = "> "
# A line with this suffix continues on the next line.
CONTINUATION = "\\"


CHAT_ARGUMENTS = (
    Argument("SLUG", "Slug of the agent"),
    Argument("--session ID", "Continue this session"),
    Argument(
        "--attach FILE",
        "Image, text, or PDF file for the first message. Repeatable",
        action="append",
    ),
    Argument(
        "--working-dir WORKING_DIR",
        "Folder on this host to use as the working directory",
        default="",
    ),
    *MODEL_ARGUMENT,
)


def run_chat(cli: CommandContext, options: argparse.Namespace) -> None:
    """Chat until the input ends."""
    agent = cli.get_row(Agent, slug=options.slug)
    require_run_permission(cli.principal, agent)
    session = get_session(cli, options.session) if options.session else None
    if session is not None and session.agent_id != agent.pk:
        raise NotFound(
            f"The session {session.pk} belongs to another agent, `{session.agent.slug}`.",
            field="--session",
            remedy=f"Run: bonobot agents chat {session.agent.slug} --session {session.pk}",
        )
    if session is not None and options.model:
        raise InvalidInput(
            "A session keeps its model endpoint.",
            field="--model",
            remedy="Omit --model, or start another session.",
        )
    chat = TerminalChat(cli, agent, session, options.working_dir)
    chat.model_endpoint = find_selectable_endpoint(cli.principal, agent, options.model)
    chat.attachments = read_attachments(options.attach or ())
    chat.greet()
    for line in chat.read_lines():
        if not chat.handle_line(line):
            break
    if chat.failed:
        raise CommandFailed


class TerminalChat:
    """A chat with an agent, with its session and the attachments of the next message."""

    def __init__(
        self, cli: CommandContext, agent: Agent, session: Session | None, working_dir: str
    ) -> None:
        self.cli = cli
        self.agent = agent
        self.session = session
        self.attachments: list[Attachment] = []
        # Of a new session; None: the agent's.
        self.model_endpoint: ModelEndpoint | None = None
        # Whether a message got no answer; sets the exit status in a pipe.
        self.failed = False
        self._working_dir = working_dir
        self._renderer = SessionRenderer(cli, show_answers=True)

    @property
    def steps(self) -> list[Step]:
        rows = self.session.steps.order_by("seq") if self.session else ()
        return list_current_steps(list(rows))

    def greet(self) -> None:
        """Print the agent's name and the latest steps."""
        if self._is_interactive:
            self.cli.print_message(
                f"Chat with {make_visible(self.agent.name)}. Enter /help for a list of commands."
            )
        if self.session is None:
            return
        steps = self.steps
        self._renderer.last_seq = steps[-1].seq if steps else 0
        for step in steps[-STEPS_SHOWN:] if not self.cli.as_json else ():
            self._show_past_step(step)
        self.follow_session()

    def read_lines(self) -> Iterator[str]:
        """Yield the lines of the terminal until Ctrl-D, or of a pipe or file."""
        if not self._is_interactive:
            yield from (line.rstrip("\n") for line in sys.stdin)
            return
        with suppress(ImportError):
            import readline  # noqa: F401 - moving in the line, and earlier lines
        while True:
            try:
                yield self._read_line()
            except EOFError:
                return
            except KeyboardInterrupt:
                self.cli.print_message("\nPress Ctrl-D to exit.")

    def handle_line(self, line: str) -> bool:
        """Handle a line and print problems; return False if it ends the chat."""
        if not line.strip():
            return True
        try:
            return self._process_line(line)
        except Problem as problem:
            self.failed = self.failed or not self._is_interactive
            self.cli.show_problem(problem)
            return True

    def send_message(self, text: str) -> None:
        """Send a message and follow the session."""
        self._run_and_follow(lambda: self._send_or_start(text))

    def retry_message(self, text: str | None) -> None:
        """Send the last message again, in its place, with `text` if given."""
        session = self.started_session
        self._run_and_follow(
            lambda: resend_message(
                self.cli.principal, session, text=text, attachments=self.attachments
            )
        )

    @property
    def started_session(self) -> Session:
        """The session; raises `InvalidInput` before the first message."""
        if self.session is None:
            raise InvalidInput(
                "No message was sent yet.", field="message", remedy="Send a message first."
            )
        return self.session

    def follow_session(self) -> None:
        """Follow the session until it stops, asking for approvals; Ctrl-C cancels it."""
        self._run_and_follow(None)

    def _run_and_follow(self, send: Callable[[], object] | None) -> None:
        try:
            if send is not None:
                # The session starts on send, so Ctrl-C must find it to cancel it.
                with defer_interrupt():
                    send()
                    self.attachments = []
            session = self.started_session
            follow = partial(
                show_session_steps,
                self.cli,
                session,
                self._renderer,
                None,
                stop_at_request=self.cli.can_ask,
            )
            follow()
            while approvals.answer_pending_requests(self.cli, session, wait=False, timeout_s=0):
                follow()
        except KeyboardInterrupt:
            self._cancel_session(self.started_session)
        self._show_outcome(self.started_session)

    def _send_or_start(self, text: str) -> None:
        if self.session is not None:
            send_message(self.cli.principal, self.session, text, self.attachments)
            return
        self.session = start_session(
            self.cli.principal,
            self.agent,
            text,
            working_dir=self._working_dir,
            attachments=self.attachments,
            model_endpoint=self.model_endpoint,
        )

    def _cancel_session(self, session: Session) -> None:
        """Cancel the session and wait until that is stored; a second Ctrl-C stops waiting."""
        self.cli.print_message("Canceling…")
        with suppress(KeyboardInterrupt):
            if cancel_session(self.cli.principal, session):
                # If this process runs the session, handle the cancellation now.
                get_runtime().call(get_session_runner().claim_and_run, session.pk)
                show_session_steps(self.cli, session, self._renderer, None)

    def _show_outcome(self, session: Session) -> None:
        session.refresh_from_db()
        if self.cli.as_json:
            self.cli.out.file.write(json.dumps(build_report(session.pk), default=str) + "\n")
            self.cli.out.file.flush()
        if session.status == Session.Status.DONE:
            return
        self.failed = self.failed or not self._is_interactive
        if session.status == Session.Status.WAITING:
            approvals.show_pending_requests(self.cli, session)
        elif session.status == Session.Status.CANCELLED:
            self.cli.print_message("Canceled.")
        elif session.error_detail:
            self.cli.print_message(f"{session.status}: {make_visible(session.error_detail)}")

    def _process_line(self, line: str) -> bool:
        name, _, argument = line.strip().partition(" ")
        if command := COMMANDS.get(name):
            return command.run(self, argument.strip())
        if name.startswith("/") and not name.startswith("//"):
            suggestions = get_close_matches(name, COMMANDS, n=1, cutoff=0.7)
            if suggestions:
                self.cli.print_message(
                    f"Did you mean {suggestions[0]}? To send this as a message, start it with //."
                )
                return True
        self.send_message(line.removeprefix("/") if line.startswith("//") else line)
        return True

    def _show_past_step(self, step: Step) -> None:
        """Print a step of an existing session."""
        data = build_step_data(step)
        if step.kind == Step.Kind.MESSAGE:
            self.cli.out.print(f"{PROMPT}{make_visible(data['text'])}", markup=False, style="bold")
        elif step.kind == Step.Kind.CALL and step.state != Step.State.INTENT:
            self.cli.out.print(render_call(data))
        elif step.kind == Step.Kind.MODEL and data.get("text"):
            self.cli.out.print(render_model_text(data["text"], formatted=self.cli.out.is_terminal))

    @property
    def _is_interactive(self) -> bool:
        return self.cli.can_ask

    def _read_line(self) -> str:
        # Readline prints the prompt itself: otherwise it erases it when a line is edited, and loses
        # a Ctrl-D that is typed between the prompt and its start.
        line = input(PROMPT)
        while line.endswith(CONTINUATION):
            line = f"{line.removesuffix(CONTINUATION)}\n{input('  ')}"
        return line


@dataclass(frozen=True)
class ChatCommand:
    """A slash command; `run` returns whether the chat continues."""

    help: str
    run: Callable[[TerminalChat, str], bool]


def _show_help(chat: TerminalChat, argument: str) -> bool:
    for name, command in COMMANDS.items():
        chat.cli.print_message(f"{name:<10} {command.help}")
    chat.cli.print_message(
        "Ctrl-C cancels the current turn. Ctrl-D exits. End a line with \\ to continue on the next."
    )
    return True


def _retry_last_message(chat: TerminalChat, argument: str) -> bool:
    chat.retry_message(None)
    return True


def _replace_last_message(chat: TerminalChat, argument: str) -> bool:
    if not argument:
        raise InvalidInput("/edit requires a text.", field="message", remedy="Use: /edit TEXT")
    chat.retry_message(argument)
    return True


def _attach_file(chat: TerminalChat, argument: str) -> bool:
    chat.attachments += read_attachments([argument])
    names = ", ".join(make_visible(attachment.name, 120) for attachment in chat.attachments)
    chat.cli.print_message(f"Attached to the next message: {names}.")
    return True


def _export_chat(chat: TerminalChat, argument: str) -> bool:
    form = "json" if argument.endswith(".json") else "markdown"
    path = Path(argument or build_filename(chat.started_session, form)).expanduser()
    write_text_file(path, export_session(chat.started_session, form), "/export")
    chat.cli.print_message(f"Saved to {path}.")
    return True


def _show_call(chat: TerminalChat, argument: str) -> bool:
    calls = [step for step in chat.steps if step.kind == Step.Kind.CALL]
    matches = [step for step in calls if argument in ("", str(step.seq))]
    if not matches:
        raise NotFound(
            f"Call #{argument} doesn't exist." if argument else "No calls yet.",
            field="/show",
            remedy="Use the number shown after a call.",
        )
    chat.cli.out.print(render_call(build_step_data(matches[-1]), full=True))
    return True


def _show_resume_command(chat: TerminalChat, argument: str) -> bool:
    chat.cli.print_message(
        f"bonobot agents chat {chat.agent.slug} --session {chat.started_session.pk}"
    )
    return True


def _end_chat(chat: TerminalChat, argument: str) -> bool:
    return False


COMMANDS = {
    "/help": ChatCommand("Show this help", _show_help),
    "/retry": ChatCommand("Resend the last message", _retry_last_message),
    "/edit": ChatCommand("Replace the last message: /edit TEXT", _replace_last_message),
    "/attach": ChatCommand(
        "Attach an image, text, or PDF file to the next message: /attach FILE", _attach_file
    ),
    "/show": ChatCommand("Show a call in full: /show or /show NUMBER", _show_call),
    "/export": ChatCommand("Export the session: /export [FILE.md or FILE.json]", _export_chat),
    "/session": ChatCommand(
        "Show the command to continue this session later", _show_resume_command
    ),
    "/quit": ChatCommand("Exit", _end_chat),
}


VERBS = (
    CommandVerb(
        "chat",
        "Chat with an agent in the terminal, or from a pipe with one message per line",
        run_chat,
        arguments=CHAT_ARGUMENTS,
        examples=(
            "agents chat demo",
            "agents chat demo --session 0198c0de-…",
            "agents chat demo < questions.txt",
        ),
    ),
)
