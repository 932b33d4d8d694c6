"""Export sessions as Markdown, JSON and a report.

Texts of servers and models are untrusted: Markdown shows hidden characters, and code fences can't
be closed from inside. Superseded steps are marked in the JSON and only counted in the Markdown.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.utils import timezone

from agents.models import Approval, ElicitationRequest, Session, Step
from agents.models.page_urls import build_page_url
from agents.sessions.events import build_step_data
from agents.sessions.history import find_superseded_seqs, list_current_steps
from agents.sessions.session_import import FORMAT_VERSION
from bonobot.core.i18n.messages import format_count, format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible

MEDIA_TYPES = {"markdown": "text/markdown", "json": "application/json"}
SUFFIXES = {"markdown": "md", "json": "json"}


def export_session(session: Session, file_format: str) -> str:
    """Return a session as text (one query)."""
    steps = list(session.steps.order_by("seq"))
    if file_format == "json":
        return json.dumps(to_json(session, steps), indent=2, ensure_ascii=False) + "\n"
    return to_markdown(session, steps)


def build_file_response(session: Session, file_format: str) -> HttpResponse:
    """Return a session as a download; raises `InvalidInput` for an unknown format."""
    if file_format not in MEDIA_TYPES:
        raise InvalidInput(
            format_message("Sessions can't be exported as {form!r}.", form=file_format[:40]),
            field="as",
            remedy=format_message("Use one of: {values}.", values=", ".join(MEDIA_TYPES)),
        )
    content_type = f"{MEDIA_TYPES[file_format]}; charset=utf-8"
    response = HttpResponse(export_session(session, file_format), content_type=content_type)
    response["Content-Disposition"] = (
        f'attachment; filename="{build_filename(session, file_format)}"'
    )
    response["X-Content-Type-Options"] = "nosniff"
    return response


def build_filename(session: Session, file_format: str) -> str:
    """Return a session's file name: letters, digits and dashes of its title, and part of its id."""
    slug = re.sub(r"[^a-z0-9]+", "-", session.title.lower()).strip("-")[:60].strip("-")
    return f"{slug or 'session'}-{str(session.pk)[:8]}.{SUFFIXES[file_format]}"


def to_json(session: Session, steps: Sequence[Step]) -> dict[str, Any]:
    """Return a session with all its steps; superseded ones are marked."""
    superseded_seqs = find_superseded_seqs(steps)
    return {
        "version": FORMAT_VERSION,
        "id": str(session.pk),
        "agent": session.agent.slug,
        "model_endpoint": session.effective_endpoint.slug,
        "title": session.title,
        "status": session.status,
        "error_code": session.error_code,
        "error_detail": session.error_detail,
        "started_by": session.started_by,
        "created_at": session.created_at.isoformat(),
        "finished_at": session.finished_at.isoformat() if session.finished_at else None,
        "turns": session.turns,
        "calls": session.calls,
        "input_tokens": session.input_tokens,
        "output_tokens": session.output_tokens,
        "cached_tokens": session.cached_tokens,
        "cost_microusd": session.cost_microusd,
        "exported_at": timezone.now().isoformat(),
        "steps": [
            build_step_data(step) | {"superseded": step.seq in superseded_seqs} for step in steps
        ],
    }


def to_markdown(session: Session, steps: Sequence[Step]) -> str:
    """Return the current conversation as Markdown."""
    current_steps = list_current_steps(steps)
    return (
        "\n\n".join(
            [
                *_render_header(session, len(steps) - len(current_steps)),
                *_render_steps(current_steps),
            ]
        )
        + "\n"
    )


def _render_header(session: Session, replaced_count: int) -> Iterator[str]:
    yield f"# {_format_line(session.title or str(session.pk))}"
    yield (
        f"Agent `{session.agent.slug}`, started by {_format_line(session.started_by)} on "
        f"{session.created_at:%Y-%m-%d %H:%M} UTC, {session.status}: "
        f"{format_count(session.turns, 'turn')}, {format_count(session.calls, 'call')}, "
        f"{format_count(session.input_tokens + session.output_tokens, 'token')}."
    )
    if replaced_count:
        yield (
            "1 step was replaced by a later message and is left out."
            if replaced_count == 1
            else f"{replaced_count:,} steps were replaced by later messages and are left out."
        )


def _render_steps(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        text = _STEP_RENDERERS[Step.Kind(step.kind)](step)
        if text:
            yield text


def _render_message(step: Step) -> str:
    payload = step.payload
    names = [
        attachment.get("name", "")
        for attachment in (*payload.get("images", ()), *payload.get("files", ()))
    ]
    files = "".join(f"\n\nAttached: `{_format_line(name)}`" for name in names)
    quoted_text = "\n".join(f"> {line}" for line in make_visible(payload["text"]).splitlines())
    return f"## {_format_line(payload.get('by', ''))}\n\n{quoted_text}{files}"


def _render_model_turn(step: Step) -> str:
    text = make_visible(step.payload.get("text", "")).strip()
    if thinking := make_visible(step.payload.get("thinking", "")).strip():
        summary = "<details><summary>Thinking</summary>"
        folded_thinking = f"{summary}\n\n{_render_code_block(thinking, '')}\n\n</details>"
        text = "\n\n".join(part for part in (folded_thinking, text) if part)
    if step.state == Step.State.FAILED:
        failure = _format_line(f"{step.payload.get('detail', '')} ({step.payload.get('code', '')})")
        text = "\n\n".join(part for part in (text, f"*No answer: {failure}*") if part)
    return f"## Agent\n\n{text}" if text else ""


def _format_call(step: Step) -> str:
    payload = step.payload
    arguments = json.dumps(payload.get("arguments"), indent=2, ensure_ascii=False)
    duration = f", {payload['duration_ms']} ms" if payload.get("duration_ms") is not None else ""
    state = payload.get("code") or step.state
    return "\n\n".join(
        (
            f"### Call `{_format_line(payload.get('name', ''))}` ({state}{duration})",
            _render_code_block(make_visible(arguments), "json"),
            _render_code_block(make_visible(payload.get("text", "")), ""),
        )
    )


def _render_notice(step: Step) -> str:
    return f"*{_format_line(step.payload.get('text', ''))}*"


def _render_end(step: Step) -> str:
    """Return why a run ended without an answer; an answer is rendered with its model turn."""
    payload = step.payload
    if not (code := payload.get("code")):
        return ""
    reason = _format_line(f"{payload.get('detail', '')} {payload.get('remedy', '')}")
    return f"*Ended: {reason} ({code})*" if reason else f"*Ended: {code}*"


_STEP_RENDERERS = {
    Step.Kind.MESSAGE: _render_message,
    Step.Kind.MODEL: _render_model_turn,
    Step.Kind.CALL: _format_call,
    Step.Kind.NOTICE: _render_notice,
    Step.Kind.END: _render_end,
}


def _render_code_block(text: str, language: str) -> str:
    """Return a code block whose fence is longer than any run of backticks inside."""
    longest_run = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest_run + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _format_line(text: str) -> str:
    return " ".join(make_visible(text).replace("`", "'").split())


def load_output(session: Session) -> Any:
    """Return the value of a completed session's answer; None without an output schema."""
    if session.status != Session.Status.DONE:
        return None
    end_step = session.steps.filter(kind=Step.Kind.END).order_by("-seq").first()
    return end_step.payload.get("output") if end_step else None


def build_report(session_id: UUID) -> dict[str, Any]:
    """Return status, answer and calls of a session."""
    rows = Session.objects.select_related("agent__model_endpoint", "model_endpoint")
    session = rows.get(pk=session_id)
    steps = list(session.steps.order_by("seq"))
    answers = [
        s.payload["answer"] for s in steps if s.kind == Step.Kind.END and "answer" in s.payload
    ]
    return {
        "id": str(session.pk),
        "status": session.status,
        "model_endpoint": session.effective_endpoint.slug,
        "answer": answers[-1] if answers and session.status == Session.Status.DONE else "",
        "output": load_output(session),
        "error": {"code": session.error_code, "detail": session.error_detail}
        if session.error_code
        else None,
        "calls": [_serialize_call(step) for step in steps if step.kind == Step.Kind.CALL],
        "notices": [s.payload["text"] for s in steps if s.kind == Step.Kind.NOTICE],
        "approvals": [
            {
                "id": str(request.pk),
                "name": request.label,
                "url": build_page_url(request),
                "expires_at": request.expires_at,
            }
            for request in Approval.objects.pending().in_session_tree(session.pk)
        ],
        "questions": [
            {"id": str(request.pk), "server": request.server_name, "message": request.message}
            | {"url": build_page_url(request), "expires_at": request.expires_at}
            for request in ElicitationRequest.objects.pending().in_session_tree(session.pk)
        ],
        "turns": session.turns,
        "input_tokens": session.input_tokens,
        "output_tokens": session.output_tokens,
        "cached_tokens": session.cached_tokens,
        "cost_microusd": session.cost_microusd,
    }


def _serialize_call(step: Step) -> dict[str, Any]:
    names = ("name", "arguments", "text", "code", "server", "tool", "duration_ms", "flagged")
    return {"state": step.state} | {name: step.payload.get(name) for name in names}
