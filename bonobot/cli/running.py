"""Running sessions from the command line: followed until they rest, by a worker or in here."""

import argparse
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from time import monotonic
from uuid import UUID

from agents.attachments import LARGEST_TOGETHER, Attachment
from agents.models import Agent, Session
from agents.sessions.events import Event
from agents.sessions.reports import report
from agents.sessions.requests import send_again, start
from agents.sessions.runner import session_runner
from agents.sessions.runners import LEASE, any_alive
from agents.sessions.watching import follow
from bonobot.cli import approvals
from bonobot.cli.drawing import Drawing
from bonobot.cli.group import Cli, Failed
from bonobot.lib.problems import Invalid, Unavailable
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import visible

Told = Callable[[list[Event]], object]


def declare_run(parser: argparse.ArgumentParser) -> None:
    """Declare how long a run is waited for, and what is sent along."""
    parser.add_argument("--attach", action="append", metavar="FILE", help="an image or a text")
    declare_waiting(parser)


def declare_waiting(parser: argparse.ArgumentParser) -> None:
    """Declare how long a run is waited for."""
    parser.add_argument("--timeout", type=float, default=3600, metavar="SECONDS")
    parser.add_argument("--wait", action="store_true", help="also for a person's answer to a call")


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `run`."""
    parser.add_argument("slug", metavar="SLUG")
    parser.add_argument("text", metavar="TEXT", help="the message")
    parser.add_argument("--working-dir", default="", help="a folder to attach")
    declare_run(parser)


def run(cli: Cli, options: argparse.Namespace) -> None:
    """Give an agent a message and wait for its answer."""
    agent: Agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=options.slug)
    files = files_at(options.attach or ())
    session = start(
        cli.principal, agent, options.text, working_dir=options.working_dir, attachments=files
    )
    finish(cli, session, options)


def declare_retry(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `retry`."""
    parser.add_argument("session", metavar="SESSION", help="its id")
    parser.add_argument("--message", type=int, metavar="SEQ", help="default: the last one")
    parser.add_argument("--text", help="what it says now; default: the same")
    declare_run(parser)


def retry(cli: Cli, options: argparse.Namespace) -> None:
    """Send a message of a session again, in its place, and wait for the answer."""
    session = find(cli, options.session)
    files = files_at(options.attach or ())
    last = session.steps.order_by("-seq").values_list("seq", flat=True).first() or 0
    send_again(cli.principal, session, options.message, options.text, files)
    finish(cli, session, options, after=last)


def find(cli: Cli, pk: str) -> Session:
    """Return a session by its id; raises `NotFound`."""
    rows = Session.objects.select_related("agent")
    found: Session = rows.get_or_404(cli.principal.organization_id, pk=pk)
    return found


def files_at(paths: "list[str] | tuple[()]") -> list[Attachment]:
    """Read files to attach; raises `Invalid` (field `--attach`)."""
    return [_file(Path(path).expanduser()) for path in paths]


def _file(path: Path) -> Attachment:
    try:
        with path.open("rb") as file:
            return Attachment(path.name, file.read(LARGEST_TOGETHER + 1))
    except OSError as error:
        raise Invalid(
            f"The file {str(path)!r} can't be read: {error.strerror}.",
            code="unusable_file",
            field="--attach",
            remedy="Name an image or a text file.",
        ) from None


def finish(cli: Cli, session: Session, options: argparse.Namespace, after: int = 0) -> None:
    """Follow a session to its rest, having what it asks answered, and print what came of it."""
    rested(cli, session, options, after)
    done = report(session.pk)
    cli.emit(done)
    if done["status"] == Session.Status.WAITING:
        approvals.tell(cli, session)
        raise Failed
    if done["status"] != Session.Status.DONE:
        if done["error"]:
            cli.say(f"{done['status']}: {visible(done['error']['detail'])}")
        raise Failed
    cli.say(visible(done["answer"]))


def rested(cli: Cli, session: Session, options: argparse.Namespace, after: int = 0) -> None:
    """Follow a session to its rest, having what it asks answered."""
    drawing = Drawing(cli, answers=False, after=after)
    until_rest(cli, session, drawing, options.timeout)
    while approvals.go_on(cli, session, wait=options.wait, timeout_s=options.timeout):
        until_rest(cli, session, drawing, options.timeout)


def until_rest(cli: Cli, session: Session, drawing: Drawing, timeout_s: float | None) -> None:
    """Show what a session does until it rests.

    Raises `Unavailable` (code `still_running`) when the time is over; Ctrl-C leaves it running.
    """
    if not any_alive(besides=session_runner().runner_id):
        # No worker takes it: this process becomes a runner until the session rests.
        runtime().call(session_runner().take, session.pk)
    try:
        with drawing.shown():
            runtime().call(_follow, session.pk, drawing, timeout_s=timeout_s)
    except TimeoutError:
        raise Unavailable(
            f"The session {session.pk} is still running after {timeout_s:.0f} s.",
            code="still_running",
            remedy="It goes on; look at it in the admin, or give a longer --timeout.",
        ) from None


async def _follow(session_id: UUID, drawing: Drawing) -> None:
    looked = monotonic()
    async with aclosing(follow(session_id, drawing.after)) as looks:
        async for events in looks:
            if monotonic() - looked > LEASE.total_seconds():
                # A worker that seemed alive may be gone: what nobody holds is taken here.
                looked = monotonic()
                await session_runner().take(session_id)
            drawing.take(events)
