"""The session commands of `agents`, and the live rendering of steps.

Calls are shortened; `/show` in a chat prints one in full. Texts of models and servers are
untrusted: invisible characters are made visible, and links show their address.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import Q
from rich.console import Group, RenderableType
from rich.text import Text

from agents.cli import approvals
from agents.models import Agent, ElicitationRequest, Session, SessionApproval, Step
from agents.sessions.events import SessionEvent
from bonobot.core.cli.command_group import (
    Argument,
    CommandContext,
    CommandFailed,
    CommandVerb,
    parse_json_object,
    read_text,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import InvalidInput, ServiceUnavailable
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible

if TYPE_CHECKING:
    from agents.attachments import Attachment

# Limits for arguments and results in shortened calls.
MAX_LINES, MAX_CHARACTERS = 12, 2_000
MARKS = {"done": ("✓", "green"), "unknown": ("?", "yellow")}
# Terminal rows to keep free below streamed text.
FREE_ROWS = 6


class SessionRenderer:
    """Renders the events of one session; `last_seq` is the last step that was printed.

    `show_answers`: print the model's texts too; not needed if the caller prints the answer.
    """

    def __init__(self, cli: CommandContext, *, show_answers: bool, last_seq: int = 0) -> None:
        self.last_seq = last_seq
        self._cli = cli
        self._show_answers = show_answers
        self._open_steps: dict[int, dict[str, Any]] = {}
        self._printed: set[int] = set()
        self._live: Any = None

    @contextmanager
    def show_live_steps(self) -> Iterator[None]:
        """Show unfinished steps at the bottom of a terminal while the block runs."""
        from rich.live import Live

        self._open_steps.clear()
        if self._cli.as_json or not self._cli.out.is_terminal:
            yield
            return
        with Live(console=self._cli.out, transient=True, refresh_per_second=8) as self._live:
            self._refresh_live()
            try:
                yield
            finally:
                self._live.update(Text(""))
        self._live = None

    def handle_events(self, events: list[SessionEvent]) -> None:
        for event in events:
            self._handle_event(event)
        if self._live is not None and events:
            self._refresh_live()

    def _handle_event(self, event: SessionEvent) -> None:
        from agents.sessions.events import PROGRESS, TEXT, THINKING

        data = event.data
        if event.kind == TEXT:
            step = self._open_steps.get(data["seq"])
            if step is not None:
                step["text"] = step.get("text", "")[: data["at"]] + data["text"]
        elif event.kind == PROGRESS:
            self._open_steps.get(data["seq"], {})["progress"] = data
        elif "seq" in data and event.kind != THINKING:  # a spinner is shown instead of thinking
            self._handle_step(event)

    def _handle_step(self, event: SessionEvent) -> None:
        seq, data = event.data["seq"], event.data
        if event.id is not None:
            self.last_seq = event.id
        if data["state"] == Step.State.INTENT:
            self._open_steps[seq] = dict(data)
            return
        self._open_steps.pop(seq, None)
        if seq not in self._printed:
            self._printed.add(seq)
            self._print_step(data)

    def _print_step(self, data: dict[str, Any]) -> None:
        if self._cli.as_json:
            return
        if data["kind"] == Step.Kind.CALL:
            self._cli.out.print(render_call(data))
        elif data["kind"] == Step.Kind.NOTICE:
            self._cli.out.print(f"! {make_visible(data['text'])}", style="yellow", markup=False)
        elif (
            self._show_answers and data["kind"] == Step.Kind.MODEL and data.get("text", "").strip()
        ):
            self._cli.out.print(
                render_model_text(data["text"], formatted=self._cli.out.is_terminal)
            )

    def _refresh_live(self) -> None:
        from rich.spinner import Spinner

        if self._live is not None:
            parts = [
                part
                for _, step in sorted(self._open_steps.items())
                for part in self._render_open_step(step)
            ]
            self._live.update(Group(*(parts or [Spinner("dots", "The agent is working…")])))

    def _render_open_step(self, step: dict[str, Any]) -> Iterator[RenderableType]:
        from rich.spinner import Spinner

        if step["kind"] == Step.Kind.CALL:
            yield Spinner("dots", _render_running_call(step))
        elif text := step.get("text", ""):
            end = "\n".join(text.splitlines()[-max(4, self._cli.out.height - FREE_ROWS) :])
            yield render_model_text(end, formatted=True)
        else:
            yield Spinner("dots", "The agent is thinking…")


def render_call(data: dict[str, Any], *, full: bool = False) -> RenderableType:
    """Render a finished call with arguments and result, shortened or in full."""
    mark = MARKS.get(data["state"], ("✗", "red"))
    duration = f" {data['duration_ms']} ms" if data.get("duration_ms") is not None else ""
    code = f" {data['code']}" if data.get("code") else ""
    name = make_visible(data.get("name", ""), 120)
    head = Text.assemble(mark, f" {name}", (f"{duration}{code} #{data['seq']}", "dim"))
    parts: list[RenderableType] = [head]
    if data.get("arguments"):
        arguments_text = json.dumps(data["arguments"], indent=2, ensure_ascii=False)
        parts.append(_render_excerpt(arguments_text, full))
    if data.get("text"):
        parts.append(_render_excerpt(data["text"], full))
    return Group(*parts)


def render_model_text(text: str, *, formatted: bool) -> RenderableType:
    """Render a model's text as Markdown or plain text."""
    from rich.markdown import Markdown

    if not formatted:
        return Text(make_visible(text))
    # Show link addresses, because the link text is untrusted.
    return Markdown(make_visible(text), hyperlinks=False)


def _render_excerpt(text: str, full: bool) -> RenderableType:
    from rich.padding import Padding

    excerpt, hidden_lines = make_visible(text), 0
    with suppress(ValueError, RecursionError):
        excerpt = make_visible(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    if not full:
        lines = excerpt.splitlines()
        hidden_lines = len(lines) - MAX_LINES
        excerpt = make_visible("\n".join(lines[:MAX_LINES]), MAX_CHARACTERS)
    footer = [Text(f"… {hidden_lines} more lines", style="dim")] if hidden_lines > 0 else []
    return Padding(Group(_highlight_json(excerpt), *footer), (0, 4))


def _highlight_json(text: str) -> RenderableType:
    from rich.json import JSON

    try:
        return JSON(text)
    except ValueError:
        return Text(text, style="dim")


def _render_running_call(step: dict[str, Any]) -> Text:

    name = make_visible(step.get("name", ""), 120)
    progress = step.get("progress") or {}
    if not progress:
        return Text(name)
    total = f" / {progress['total']:g}" if progress.get("total") else ""
    message = make_visible(progress.get("message", ""), 120)
    return Text.assemble(name, (f" {message} {progress['done']:g}{total}", "dim"))


TIMEOUT_ARGUMENT = Argument(
    "--timeout SECONDS",
    "Maximum time to wait, in seconds (default: 3600)",
    type=float,
    default=3600,
)


WAIT_ARGUMENTS = (
    TIMEOUT_ARGUMENT,
    Argument("--wait", "Also wait for pending approvals and elicitation requests"),
)


SEND_ARGUMENTS = (
    Argument("--attach FILE", "Image, text, or PDF file to attach. Repeatable", action="append"),
    *WAIT_ARGUMENTS,
)


MODEL_ARGUMENT = (
    Argument("--model SLUG", "Slug of a model endpoint to use instead of the agent's", default=""),
)


RUN_ARGUMENTS = (
    Argument("SLUG", "Slug of the agent"),
    Argument("TEXT", "Message to send"),
    Argument(
        "--working-dir WORKING_DIR",
        "Folder on this host to use as the working directory",
        default="",
    ),
    *MODEL_ARGUMENT,
    Argument("--output-schema FILE", "File with the JSON Schema of the answer. -: standard input"),
    *SEND_ARGUMENTS,
)


def read_output_schema(path: str | None) -> dict[str, Any] | None:
    """Read the option `--output-schema`; raises `InvalidInput`."""
    text = read_text(path, "--output-schema")
    return None if text is None else parse_json_object(text, "--output-schema")


def handle_run(cli: CommandContext, options: argparse.Namespace) -> None:
    """Give an agent a message and wait for its answer."""
    from agents.sessions.services import find_selectable_endpoint, start_session

    agent = cli.get_row(Agent, slug=options.slug)
    attachments = read_attachments(options.attach or ())
    session = start_session(
        cli.principal,
        agent,
        options.text,
        working_dir=options.working_dir,
        attachments=attachments,
        model_endpoint=find_selectable_endpoint(cli.principal, agent, options.model),
        output_schema=read_output_schema(options.output_schema),
    )
    show_session_result(cli, session, options)


RETRY_ARGUMENTS = (
    Argument("SESSION", "ID of the session"),
    Argument("--message SEQ", "Number of the message to resend (default: the last one)", type=int),
    Argument("--text TEXT", "New text of the message (default: unchanged)"),
    *SEND_ARGUMENTS,
)


def handle_retry(cli: CommandContext, options: argparse.Namespace) -> None:
    """Send a message of a session again, in its place, and wait for the answer."""
    from agents.sessions.services import resend_message

    session = get_session(cli, options.session)
    attachments = read_attachments(options.attach or ())
    last_seq = session.steps.order_by("-seq").values_list("seq", flat=True).first() or 0
    resend_message(cli.principal, session, options.message, options.text, attachments)
    show_session_result(cli, session, options, last_seq=last_seq)


def get_session(cli: CommandContext, pk: str) -> Session:
    """Return a session by its id; raises `NotFound`."""
    rows = Session.objects.select_related("agent")
    return cli.get_row(Session, rows, pk=pk)


def read_attachments(paths: "list[str] | tuple[()]") -> "list[Attachment]":
    """Read files to attach; raises `InvalidInput` (field `--attach`)."""
    return [_read_attachment(Path(path).expanduser()) for path in paths]


def _read_attachment(path: Path) -> "Attachment":
    from agents.attachments import MAX_TOTAL_BYTES, Attachment

    try:
        with path.open("rb") as file:
            return Attachment(path.name, file.read(MAX_TOTAL_BYTES + 1))
    except OSError as error:
        raise InvalidInput(
            f"The file {str(path)!r} can't be read: {error.strerror}.",
            code="unusable_file",
            field="--attach",
            remedy="Use an image, text, or PDF file.",
        ) from None


def show_session_result(
    cli: CommandContext, session: Session, options: argparse.Namespace, last_seq: int = 0
) -> None:
    """Follow a session until it stops and print its result; raises `CommandFailed` if not done."""
    from agents.sessions.export import build_report

    wait_for_session(cli, session, options, last_seq)
    result = build_report(session.pk)
    if result["status"] == Session.Status.RUNNING and result["questions"]:
        result["status"] = Session.Status.WAITING  # another process waits with it for a person
    cli.emit(result)
    if result["status"] == Session.Status.WAITING:
        approvals.show_pending_requests(cli, session)
        raise CommandFailed
    if result["status"] != Session.Status.DONE:
        if result["error"]:
            cli.print_message(f"{result['status']}: {make_visible(result['error']['detail'])}")
        raise CommandFailed
    cli.print_message(make_visible(result["answer"]))


def wait_for_session(
    cli: CommandContext, session: Session, options: argparse.Namespace, last_seq: int = 0
) -> None:
    """Follow a session until it stops, getting its pending requests answered."""
    from agents.sessions.worker import get_session_runner

    renderer = SessionRenderer(cli, show_answers=False, last_seq=last_seq)
    follow = partial(
        show_session_steps,
        cli,
        session,
        renderer,
        options.timeout,
        stop_at_request=not options.wait,
    )
    follow()
    while True:
        if approvals.answer_pending_requests(
            cli, session, wait=options.wait, timeout_s=options.timeout
        ):
            follow()
        elif not options.wait and _cancel_live_requests(cli, session):
            # The session continues now, and its later live requests are canceled, too.
            follow = partial(follow, stop_at_request=False)
            follow()
        else:
            break
    if not options.wait:
        # A process of a server that requested input isn't kept for its answer.
        get_runtime().call(get_session_runner().suspend_session, session.pk)


def _cancel_live_requests(cli: CommandContext, session: Session) -> bool:
    """Cancel requests that can only be answered while this command runs; False if there are none.

    A server of the handshake era waits on its connection, which ends with this process.
    """
    from agents.sessions.worker import get_session_runner

    requests = ElicitationRequest.objects.pending().filter(session_id=session.pk, pending_call=None)
    names = {make_visible(request.server_name, 120) for request in requests}
    if not names or not get_runtime().call(get_session_runner().cancel_live_requests, session.pk):
        return False
    cli.print_message(
        f"The request of {', '.join(sorted(names))} for input was canceled. "
        "Use --wait to wait for an answer."
    )
    return True


def show_session_steps(
    cli: CommandContext,
    session: Session,
    renderer: SessionRenderer,
    timeout_s: float | None,
    *,
    stop_at_request: bool = False,
) -> None:
    """Show a session's steps until it stops or waits.

    `stop_at_request`: stop also when a server requests input and keeps the session running.
    Raises `ServiceUnavailable` (code `still_running`) after `timeout_s` seconds; Ctrl-C leaves the
    session running.
    """
    from agents.sessions.leases import has_live_runner
    from agents.sessions.worker import get_session_runner

    if not has_live_runner():
        # Without a live worker, this process runs the session.
        get_runtime().call(get_session_runner().claim_and_run, session.pk)
    try:
        with renderer.show_live_steps():
            is_blocked = partial(_is_blocked, session.pk, cli.can_ask) if stop_at_request else None
            get_runtime().call(_show_events, session.pk, renderer, is_blocked, timeout_s=timeout_s)
    except TimeoutError:
        raise ServiceUnavailable(
            f"The session {session.pk} is still running after {timeout_s:.0f} s.",
            code="still_running",
            remedy=_describe_continuation(session),
        ) from None


def _describe_continuation(session: Session) -> str:
    """Say whether a session that takes too long continues without this command."""
    from agents.sessions.leases import has_live_runner

    if not has_live_runner():
        return (
            "This command ran it, because no worker is running, so it stops now. A worker "
            f"continues it: start `bonobot up`, or run `bonobot agents chat {session.agent.slug} "
            f"--session {session.pk}`. Or use a longer --timeout."
        )
    return "It continues to run. View it in the admin, or use a longer --timeout."


async def _show_events(
    session_id: UUID, renderer: SessionRenderer, is_blocked: Callable[[], bool] | None
) -> None:
    from agents.sessions.events import watch_session
    from agents.sessions.leases import HEARTBEAT_INTERVAL_S
    from agents.sessions.worker import get_session_runner

    last_claim_at, has_request = monotonic(), False
    async with aclosing(watch_session(session_id, renderer.last_seq)) as batches:
        async for events in batches:
            if monotonic() - last_claim_at > HEARTBEAT_INTERVAL_S:
                # The worker may have died: claim the session if so.
                last_claim_at = monotonic()
                await get_session_runner().claim_and_run(session_id)
            renderer.handle_events(events)
            has_request = has_request or any(e.data.get("code") == "question" for e in events)
            if is_blocked and has_request and await get_runtime().run_orm(is_blocked):
                return


def _is_blocked(session_id: UUID, can_ask: bool) -> bool:
    """Tell whether a server's pending request can be answered here, or blocks the session.

    A request on a live connection blocks it, too: it can only be answered while its call runs.
    """
    requests = ElicitationRequest.objects.pending().filter(session_id=session_id)
    if can_ask:
        return bool(requests.exists())
    open_steps = Step.objects.filter(session_id=session_id, state=Step.State.INTENT)
    is_waiting = Q(payload__has_key="questions") | Q(payload__has_key="approval")
    return requests.filter(pending_call=None).exists() or (
        requests.filter(pending_call__isnull=False).exists()
        and not open_steps.exclude(is_waiting).exists()
    )


MAX_LISTED = 100
NUMBER_FIELDS = (
    *("turns", "calls", "input_tokens", "output_tokens", "cached_tokens", "cost_microusd"),
)


def serialize_session(session: Session) -> dict[str, Any]:
    return {
        "id": str(session.pk),
        "agent": session.agent.slug,
        "title": session.title,
        "status": session.status,
        "error_code": session.error_code,
        "started_by": session.started_by,
        **{name: getattr(session, name) for name in NUMBER_FIELDS},
        "created_at": session.created_at,
        "finished_at": session.finished_at,
    }


def _list_sessions(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Session.objects.visible_to(cli.principal).select_related("agent")
    if options.slug:
        rows = rows.filter(agent=Agent.objects.get_by_name(cli.principal, options.slug))
    if options.status:
        rows = rows.filter(status=options.status)
    serialized = [
        serialize_session(row) for row in rows.order_by("-created_at", "-pk")[:MAX_LISTED]
    ]
    names = ("id", "agent", "status", "title", "started_by", "calls")
    table_rows = [
        (f"{session['created_at']:%m-%d %H:%M}", *(session[name] for name in names))
        for session in serialized
    ]
    columns = ("CREATED", "ID", "AGENT", "STATUS", "TITLE", "STARTED BY", "CALLS")
    empty = 'No sessions. Start one: bonobot agents run SLUG "TEXT"'
    cli.emit(serialized, build_table(*columns, rows=table_rows, empty=empty))


def _cancel_session(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.sessions.services import cancel_session

    session = get_session(cli, options.session)
    was_requested = cancel_session(cli.principal, session)
    cli.emit({"id": str(session.pk), "cancelled": was_requested})
    cli.print_message(
        "Cancellation requested." if was_requested else "The session has already ended."
    )


def _release_session(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.sessions.quarantine import release_quarantined_session

    session = get_session(cli, options.session)
    release_quarantined_session(cli.principal, session)
    cli.emit({"id": str(session.pk), "released": True})
    cli.print_message("Released. A worker continues the session.")


_LIST_ARGUMENTS = (
    Argument("SLUG", "Only sessions of this agent", nargs="?"),
    Argument("--status", "Only sessions with this status", choices=Session.Status.values),
)


_SESSION_ARGUMENT = (Argument("SESSION", "ID of the session"),)


VERBS = (
    CommandVerb(
        "sessions",
        f"List the latest {MAX_LISTED} sessions",
        _list_sessions,
        arguments=_LIST_ARGUMENTS,
        examples=("agents sessions", "agents sessions demo --status waiting --json"),
    ),
    CommandVerb(
        "cancel",
        "Cancel the current turn of a session. The session accepts new messages.",
        _cancel_session,
        arguments=_SESSION_ARGUMENT,
        examples=("agents cancel 0198c0de-…",),
    ),
    CommandVerb(
        "release",
        "Release a session that was quarantined because its worker died repeatedly",
        _release_session,
        arguments=_SESSION_ARGUMENT,
        examples=("agents release 0198c0de-…",),
    ),
)


def _serialize_grant(grant: SessionApproval) -> dict[str, Any]:
    return {
        "id": str(grant.pk),
        "session_id": str(grant.session_id),
        "server_id": str(grant.server_id) if grant.server_id else None,
        "tool": grant.own_name,
        "name": grant.label,
        "granted_by": grant.granted_by,
        "created_at": grant.created_at,
    }


def _list_session_approvals(cli: CommandContext, options: argparse.Namespace) -> None:
    session = get_session(cli, options.session)
    grants = [_serialize_grant(grant) for grant in session.grants.order_by("created_at", "pk")]
    rows = [(grant["id"], grant["name"], grant["granted_by"]) for grant in grants]
    empty = "No session approvals."
    cli.emit(grants, build_table("ID", "TOOL", "GRANTED BY", rows=rows, empty=empty))


def _revoke_session_approval(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.approvals.services import revoke_session_approval

    grant = cli.get_row(SessionApproval, pk=options.grant)
    serialized = _serialize_grant(grant)
    revoke_session_approval(cli.principal, grant)
    cli.emit(serialized)
    cli.print_message(
        f"The session approval for {serialized['name']} was revoked. Effective from the next call."
    )


SESSION_APPROVAL_VERBS = (
    CommandVerb(
        "session-approvals",
        "List the approvals for a whole session",
        _list_session_approvals,
        arguments=(Argument("SESSION", "ID of the session"),),
        examples=("agents session-approvals 0198c0de-…",),
    ),
    CommandVerb(
        "revoke-session-approval",
        "Revoke a session approval",
        _revoke_session_approval,
        arguments=(
            Argument("APPROVAL", "ID, as shown by `agents session-approvals`", dest="grant"),
        ),
        examples=("agents revoke-session-approval 0198c0df-…",),
    ),
)


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export-session`."""
    from agents.sessions.export import MEDIA_TYPES

    parser.add_argument("session", metavar="SESSION", help="ID of the session")
    parser.add_argument(
        "--as",
        dest="form",
        choices=list(MEDIA_TYPES),
        default="markdown",
        help="Format (default: markdown)",
    )
    parser.add_argument("--output", metavar="FILE", help="File to write (default: standard output)")


def handle_export(cli: CommandContext, options: argparse.Namespace) -> None:
    """Write a session down; with `--json` as JSON."""
    from agents.sessions.export import export_session

    text = export_session(
        get_session(cli, options.session), "json" if cli.as_json else options.form
    )
    if not options.output:
        cli.out.file.write(text)
        return
    path = Path(options.output).expanduser()
    write_text_file(path, text, "--output")
    cli.err.print(f"Saved to {path}.", markup=False)


def write_text_file(path: Path, text: str, field: str) -> None:
    """Write a text file; raises `InvalidInput` (code `unusable_file`, field `field`)."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"The file {str(path)!r} can't be written: {error.strerror}.",
            code="unusable_file",
            field=field,
            remedy="Use another file.",
        ) from None


RUN_VERBS = (
    CommandVerb(
        "run",
        "Send a message to an agent and wait for the answer",
        handle_run,
        arguments=RUN_ARGUMENTS,
        examples=(
            'agents run demo "What time is it in Asia/Tokyo?"',
            'agents run demo "Delete the branch" --wait',
            'agents run demo "What is in it?" --attach notes.txt',
            'agents run demo "Summarize the issue" --model claude',
            'agents run demo "List the open issues" --output-schema issues.json --json',
        ),
    ),
    CommandVerb(
        "retry",
        "Resend or replace a message of a session, and wait for the answer",
        handle_retry,
        arguments=RETRY_ARGUMENTS,
        examples=(
            "agents retry 0198c0de-…",
            'agents retry 0198c0de-… --message 5 --text "Use the staging server"',
        ),
    ),
    CommandVerb(
        "export-session",
        "Export a session as Markdown, or as JSON with all steps",
        handle_export,
        arguments=(add_export_arguments,),
        examples=(
            "agents export-session 0198c0de-… --output session.md",
            "agents export-session 0198c0de-… --as json",
        ),
    ),
)
