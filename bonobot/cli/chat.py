"""`bonobot agents chat`: a conversation in the terminal, or from a pipe, a message a line.

Ctrl-C cancels what the agent does and leaves the chat open; Ctrl-D leaves it. What waits for a
person is asked in place.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from agents.attachments import Attachment
from agents.models import Agent, Session, Step
from agents.sessions.branches import current
from agents.sessions.events import shown
from agents.sessions.exporting import exported, filename
from agents.sessions.reports import report
from agents.sessions.requests import cancel, require_run, send, send_again, start
from agents.sessions.runner import session_runner
from bonobot.cli import approvals, interrupts
from bonobot.cli.drawing import Drawing, block, said
from bonobot.cli.group import Cli, Failed
from bonobot.cli.keeping import write
from bonobot.cli.running import files_at, find, until_rest
from bonobot.lib.problems import Invalid, NotFound, Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import visible

# Of a conversation that is gone on with.
STEPS_SHOWN = 12
PROMPT = "> "
# A line that ends so goes on with the next one.
GOES_ON = "\\"


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("slug", metavar="SLUG")
    parser.add_argument("--session", metavar="ID", help="go on with this one")
    parser.add_argument("--attach", action="append", metavar="FILE", help="to the first message")
    parser.add_argument("--working-dir", default="", help="a folder to attach")


def chat(cli: Cli, options: argparse.Namespace) -> None:
    """Talk until there is nothing more to say."""
    agent: Agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=options.slug)
    require_run(cli.principal, agent)
    session = find(cli, options.session) if options.session else None
    if session is not None and session.agent_id != agent.pk:
        raise NotFound(
            f"The session {session.pk} is with another agent, `{session.agent.slug}`.",
            field="--session",
            remedy=f"bonobot agents chat {session.agent.slug} --session {session.pk}",
        )
    talk = Chat(cli, agent, session, options.working_dir)
    talk.files = files_at(options.attach or ())
    talk.greet()
    for line in talk.lines():
        if not talk.heard(line):
            break
    if talk.failed:
        raise Failed


class Chat:
    """One conversation: what was said, and what the next message carries."""

    def __init__(self, cli: Cli, agent: Agent, session: Session | None, folder: str) -> None:
        self.cli = cli
        self.agent = agent
        self.session = session
        self.files: list[Attachment] = []
        # Nobody is there to see it: the exit status tells that a message had no answer.
        self.failed = False
        self._folder = folder
        self._drawing = Drawing(cli, answers=True)

    @property
    def steps(self) -> list[Step]:
        """The conversation as it stands."""
        rows = self.session.steps.order_by("seq") if self.session else ()
        return current(list(rows))

    def greet(self) -> None:
        """Say whom one talks to, and what was said last."""
        if self._asks:
            self.cli.say(f"{visible(self.agent.name)} listens. /help says what else you can do.")
        if self.session is None:
            return
        steps = self.steps
        self._drawing.after = steps[-1].seq if steps else 0
        for step in steps[-STEPS_SHOWN:] if not self.cli.as_json else ():
            self._show_again(step)
        self.finish()

    def lines(self) -> Iterator[str]:
        """Yield what is said: lines of a terminal until Ctrl-D, else of a pipe or file."""
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
        """Do what a line says; False where it ends the chat. Problems are told, not raised."""
        if not line.strip():
            return True
        try:
            return self._heard(line)
        except Problem as problem:
            self.failed = self.failed or not self._asks
            self.cli.show_problem(problem)
            return True

    def say(self, text: str) -> None:
        """Send a message and wait for what comes of it."""
        self._carry_out(lambda: self._send(text))

    def say_again(self, text: str | None) -> None:
        """Send the last message anew, in its place."""
        session = self.talked
        self._carry_out(
            lambda: send_again(self.cli.principal, session, text=text, attachments=self.files)
        )

    @property
    def talked(self) -> Session:
        """The session; raises `Invalid` before the first message."""
        if self.session is None:
            raise Invalid("Nothing was said yet.", field="message", remedy="Write a message first.")
        return self.session

    def finish(self) -> None:
        """Follow the session to its rest, asking what waits for a person; Ctrl-C cancels it."""
        self._carry_out(None)

    def _carry_out(self, send: Callable[[], object] | None) -> None:
        try:
            if send is not None:
                # It runs from the moment it is sent: Ctrl-C must find a session to cancel.
                with interrupts.later():
                    send()
                    self.files = []
            session = self.talked
            until_rest(self.cli, session, self._drawing, None)
            while approvals.go_on(self.cli, session, wait=False, timeout_s=0):
                until_rest(self.cli, session, self._drawing, None)
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
        """Cancel what runs and wait until that is written; a second Ctrl-C doesn't wait."""
        self.cli.say("Cancelling …")
        with suppress(KeyboardInterrupt):
            if cancel(self.cli.principal, session):
                # Where it runs in here, it needn't be looked for.
                runtime().call(session_runner().take, session.pk)
                until_rest(self.cli, session, self._drawing, None)

    def _tell_outcome(self, session: Session) -> None:
        session.refresh_from_db()
        if self.cli.as_json:
            self.cli.out.file.write(json.dumps(report(session.pk), default=str) + "\n")
            self.cli.out.file.flush()
        if session.status == Session.Status.DONE:
            return
        self.failed = self.failed or not self._asks
        if session.status == Session.Status.WAITING:
            approvals.tell(self.cli, session)
        elif session.status == Session.Status.CANCELLED:
            self.cli.say("Cancelled.")
        elif session.error_detail:
            self.cli.say(f"{session.status}: {visible(session.error_detail)}")

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
        """Print a step of a conversation that is gone on with."""
        data = shown(step)
        if step.kind == Step.Kind.MESSAGE:
            self.cli.out.print(f"{PROMPT}{visible(data['text'])}", markup=False, style="bold")
        elif step.kind == Step.Kind.CALL and step.state != Step.State.INTENT:
            self.cli.out.print(block(data))
        elif step.kind == Step.Kind.MODEL and data.get("text"):
            self.cli.out.print(said(data["text"], formatted=self.cli.out.is_terminal))

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
    """Something to do beside talking; `do` tells whether the chat goes on."""

    help: str
    do: Callable[[Chat, str], bool]


def _help(talk: Chat, rest: str) -> bool:
    for word, command in COMMANDS.items():
        talk.cli.say(f"{word:<10} {command.help}")
    talk.cli.say(
        "Ctrl-C cancels what the agent does, Ctrl-D leaves; a line that ends with \\ goes on."
    )
    return True


def _retry(talk: Chat, rest: str) -> bool:
    talk.say_again(None)
    return True


def _edit(talk: Chat, rest: str) -> bool:
    if not rest:
        raise Invalid("/edit what?", field="message", remedy="Write the new words behind it.")
    talk.say_again(rest)
    return True


def _attach(talk: Chat, rest: str) -> bool:
    talk.files += files_at([rest])
    names = ", ".join(visible(one.name, 120) for one in talk.files)
    talk.cli.say(f"The next message carries: {names}.")
    return True


def _export(talk: Chat, rest: str) -> bool:
    form = "json" if rest.endswith(".json") else "markdown"
    path = Path(rest or filename(talk.talked, form)).expanduser()
    write(path, exported(talk.talked, form), "/export")
    talk.cli.say(f"Written to {path}.")
    return True


def _show(talk: Chat, rest: str) -> bool:
    calls = [one for one in talk.steps if one.kind == Step.Kind.CALL]
    wanted = [one for one in calls if rest in ("", str(one.seq))]
    if not wanted:
        raise NotFound(
            f"There is no call #{rest}." if rest else "No call was made yet.",
            field="/show",
            remedy="Name the number behind a call.",
        )
    talk.cli.out.print(block(shown(wanted[-1]), whole=True))
    return True


def _session(talk: Chat, rest: str) -> bool:
    talk.cli.say(f"bonobot agents chat {talk.agent.slug} --session {talk.talked.pk}")
    return True


def _quit(talk: Chat, rest: str) -> bool:
    return False


COMMANDS = {
    "/help": Command("what you can do", _help),
    "/retry": Command("send the last message again", _retry),
    "/edit": Command("say it in other words: /edit WORDS", _edit),
    "/attach": Command("an image or a text for the next message: /attach FILE", _attach),
    "/show": Command("a call as a whole: /show, or /show NUMBER", _show),
    "/export": Command("write the conversation down: /export [FILE.md or .json]", _export),
    "/session": Command("how to go on with this conversation later", _session),
    "/quit": Command("leave", _quit),
}
