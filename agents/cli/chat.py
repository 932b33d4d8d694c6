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
from pathlib import Path
from types import FrameType

from agents.attachments import Attachment
from agents.cli import approvals
from agents.cli.sessions import (
    SessionRenderer,
    find,
    read_attachments,
    render_call,
    render_model_text,
    show_session_steps,
    write,
)
from agents.models import Agent, Session, Step
from agents.sessions.events import build_step_data
from agents.sessions.export import build_filename, export_session, report
from agents.sessions.history import list_current_steps
from agents.sessions.services import cancel, require_run, send, send_again, start
from agents.sessions.worker import get_session_runner
from bonobot.core.cli.command_group import CommandContext, CommandFailed
from bonobot.core.problems import InvalidInput, NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Delay Ctrl-C until the block has ended, then raise KeyboardInterrupt.

    Works in the main thread only. If the block raises, its exception wins.
    """
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


# Steps of an existing session that are shown at the start.
STEPS_SHOWN = 12
PROMPT = "> "
# A line with this suffix continues on the next line.
GOES_ON = "\\"


def add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `chat`."""
    parser.add_argument("slug", metavar="SLUG")
    parser.add_argument("--session", metavar="ID", help="go on with this one")
    parser.add_argument("--attach", action="append", metavar="FILE", help="to the first message")
    parser.add_argument("--working-dir", default="", help="a folder to attach")


def run_chat(cli: CommandContext, options: argparse.Namespace) -> None:
    """Chat until the input ends."""
    agent: Agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=options.slug)
    require_run(cli.principal, agent)
    session = find(cli, options.session) if options.session else None
    if session is not None and session.agent_id != agent.pk:
        raise NotFound(
            f"The session {session.pk} is with another agent, `{session.agent.slug}`.",
            field="--session",
            remedy=f"bonobot agents chat {session.agent.slug} --session {session.pk}",
        )
    talk = TerminalChat(cli, agent, session, options.working_dir)
    talk.files = read_attachments(options.attach or ())
    talk.greet()
    for line in talk.lines():
        if not talk.heard(line):
            break
    if talk.failed:
        raise CommandFailed


class TerminalChat:
    """A chat with an agent, with its session and the attachments of the next message."""

    def __init__(
        self, cli: CommandContext, agent: Agent, session: Session | None, folder: str
    ) -> None:
        self.cli = cli
        self.agent = agent
        self.session = session
        self.files: list[Attachment] = []
        # Whether a message got no answer; sets the exit status in a pipe.
        self.failed = False
        self._folder = folder
        self._drawing = SessionRenderer(cli, answers=True)

    @property
    def steps(self) -> list[Step]:
        """The current steps of the session."""
        rows = self.session.steps.order_by("seq") if self.session else ()
        return list_current_steps(list(rows))

    def greet(self) -> None:
        """Print the agent's name and the latest steps."""
        if self._asks:
            self.cli.say(
                f"{make_visible(self.agent.name)} listens. /help says what else you can do."
            )
        if self.session is None:
            return
        steps = self.steps
        self._drawing.after = steps[-1].seq if steps else 0
        for step in steps[-STEPS_SHOWN:] if not self.cli.as_json else ():
            self._show_again(step)
        self.finish()

    def lines(self) -> Iterator[str]:
        """Yield the lines of the terminal until Ctrl-D, or of a pipe or file."""
        if not self._asks:
            yield from (line.rstrip("\n") for line in sys.stdin)
            return
        with suppress(ImportError):
            import readline  # noqa: F401 - moving in the line, and earlier lines
        while True:
            try:
                yield self._read()
            except EOFError:
                return
            except KeyboardInterrupt:
                self.cli.say("\nCtrl-D leaves.")

    def heard(self, line: str) -> bool:
        """Handle a line and print problems; return False if it ends the chat."""
        if not line.strip():
            return True
        try:
            return self._heard(line)
        except Problem as problem:
            self.failed = self.failed or not self._asks
            self.cli.show_problem(problem)
            return True

    def say(self, text: str) -> None:
        """Send a message and follow the session."""
        self._carry_out(lambda: self._send(text))

    def say_again(self, text: str | None) -> None:
        """Send the last message again, in its place, with `text` if given."""
        session = self.talked
        self._carry_out(
            lambda: send_again(self.cli.principal, session, text=text, attachments=self.files)
        )

    @property
    def talked(self) -> Session:
        """The session; raises `InvalidInput` before the first message."""
        if self.session is None:
            raise InvalidInput(
                "Nothing was said yet.", field="message", remedy="Write a message first."
            )
        return self.session

    def finish(self) -> None:
        """Follow the session until it stops, asking for approvals; Ctrl-C cancels it."""
        self._carry_out(None)

    def _carry_out(self, send: Callable[[], object] | None) -> None:
        try:
            if send is not None:
                # The session starts on send, so Ctrl-C must find it to cancel it.
                with defer_interrupt():
                    send()
                    self.files = []
            session = self.talked
            show_session_steps(self.cli, session, self._drawing, None)
            while approvals.answer_pending_requests(self.cli, session, wait=False, timeout_s=0):
                show_session_steps(self.cli, session, self._drawing, None)
        except KeyboardInterrupt:
            self._cancel(self.talked)
        self._tell_outcome(self.talked)

    def _send(self, text: str) -> None:
        if self.session is not None:
            send(self.cli.principal, self.session, text, self.files)
            return
        self.session = start(
            self.cli.principal,
            self.agent,
            text,
            working_dir=self._folder,
            attachments=self.files,
        )

    def _cancel(self, session: Session) -> None:
        """Cancel the session and wait until that is stored; a second Ctrl-C stops waiting."""
        self.cli.say("Cancelling …")
        with suppress(KeyboardInterrupt):
            if cancel(self.cli.principal, session):
                # If this process runs the session, handle the cancellation now.
                get_runtime().call(get_session_runner().take, session.pk)
                show_session_steps(self.cli, session, self._drawing, None)

    def _tell_outcome(self, session: Session) -> None:
        session.refresh_from_db()
        if self.cli.as_json:
            self.cli.out.file.write(json.dumps(report(session.pk), default=str) + "\n")
            self.cli.out.file.flush()
        if session.status == Session.Status.DONE:
            return
        self.failed = self.failed or not self._asks
        if session.status == Session.Status.WAITING:
            approvals.show_pending_requests(self.cli, session)
        elif session.status == Session.Status.CANCELLED:
            self.cli.say("Cancelled.")
        elif session.error_detail:
            self.cli.say(f"{session.status}: {make_visible(session.error_detail)}")

    def _heard(self, line: str) -> bool:
        word, _, rest = line.strip().partition(" ")
        if found := COMMANDS.get(word):
            return found.do(self, rest.strip())
        if word.startswith("/") and not word.startswith("//"):
            close = get_close_matches(word, COMMANDS, n=1, cutoff=0.7)
            if close:
                self.cli.say(f"Did you mean {close[0]}? Begin with // to send it as a message.")
                return True
        self.say(line.removeprefix("/") if line.startswith("//") else line)
        return True

    def _show_again(self, step: Step) -> None:
        """Print a step of an existing session."""
        data = build_step_data(step)
        if step.kind == Step.Kind.MESSAGE:
            self.cli.out.print(f"{PROMPT}{make_visible(data['text'])}", markup=False, style="bold")
        elif step.kind == Step.Kind.CALL and step.state != Step.State.INTENT:
            self.cli.out.print(render_call(data))
        elif step.kind == Step.Kind.MODEL and data.get("text"):
            self.cli.out.print(render_model_text(data["text"], formatted=self.cli.out.is_terminal))

    @property
    def _asks(self) -> bool:
        return self.cli.can_ask

    def _read(self) -> str:
        line = self.cli.out.input(PROMPT, markup=False)
        while line.endswith(GOES_ON):
            line = f"{line.removesuffix(GOES_ON)}\n{self.cli.out.input('  ', markup=False)}"
        return line


@dataclass(frozen=True)
class Command:
    """A slash command; `run` returns whether the chat continues."""

    help: str
    do: Callable[[TerminalChat, str], bool]


def _show_help(talk: TerminalChat, rest: str) -> bool:
    for word, command in COMMANDS.items():
        talk.cli.say(f"{word:<10} {command.help}")
    talk.cli.say(
        "Ctrl-C cancels what the agent does, Ctrl-D leaves; a line that ends with \\ goes on."
    )
    return True


def _retry(talk: TerminalChat, rest: str) -> bool:
    talk.say_again(None)
    return True


def _replace_last_message(talk: TerminalChat, rest: str) -> bool:
    if not rest:
        raise InvalidInput("/edit what?", field="message", remedy="Write the new words behind it.")
    talk.say_again(rest)
    return True


def _attach(talk: TerminalChat, rest: str) -> bool:
    talk.files += read_attachments([rest])
    names = ", ".join(make_visible(one.name, 120) for one in talk.files)
    talk.cli.say(f"The next message carries: {names}.")
    return True


def _export(talk: TerminalChat, rest: str) -> bool:
    form = "json" if rest.endswith(".json") else "markdown"
    path = Path(rest or build_filename(talk.talked, form)).expanduser()
    write(path, export_session(talk.talked, form), "/export")
    talk.cli.say(f"Written to {path}.")
    return True


def _show(talk: TerminalChat, rest: str) -> bool:
    calls = [one for one in talk.steps if one.kind == Step.Kind.CALL]
    wanted = [one for one in calls if rest in ("", str(one.seq))]
    if not wanted:
        raise NotFound(
            f"There is no call #{rest}." if rest else "No call was made yet.",
            field="/show",
            remedy="Name the number behind a call.",
        )
    talk.cli.out.print(render_call(build_step_data(wanted[-1]), whole=True))
    return True


def _show_resume_command(talk: TerminalChat, rest: str) -> bool:
    talk.cli.say(f"bonobot agents chat {talk.agent.slug} --session {talk.talked.pk}")
    return True


def _end_chat(talk: TerminalChat, rest: str) -> bool:
    return False


COMMANDS = {
    "/help": Command("what you can do", _show_help),
    "/retry": Command("send the last message again", _retry),
    "/edit": Command("say it in other words: /edit WORDS", _replace_last_message),
    "/attach": Command("an image or a text for the next message: /attach FILE", _attach),
    "/show": Command("a call as a whole: /show, or /show NUMBER", _show),
    "/export": Command("write the conversation down: /export [FILE.md or .json]", _export),
    "/session": Command("how to go on with this conversation later", _show_resume_command),
    "/quit": Command("leave", _end_chat),
}
