"""A session written down, to be read elsewhere: as Markdown for people, as JSON for programs.

Texts of servers and models are a stranger's: hidden characters are visible in Markdown, and no
fence ends before its own end. What a later message replaced is in the JSON, marked, and only
counted in the Markdown.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.http import HttpResponse
from django.utils import timezone

from agents.models import Session, Step
from agents.sessions.branches import current, superseded
from agents.sessions.events import shown
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible

MEDIA_TYPES = {"markdown": "text/markdown", "json": "application/json"}
SUFFIXES = {"markdown": "md", "json": "json"}


def exported(session: Session, form: str) -> str:
    """Return a session as text (one query)."""
    steps = list(session.steps.order_by("seq"))
    if form == "json":
        return json.dumps(as_json(session, steps), indent=2, ensure_ascii=False) + "\n"
    return as_markdown(session, steps)


def as_file(session: Session, form: str) -> HttpResponse:
    """Return a session as a download; raises `Invalid` for a form that there isn't."""
    if form not in MEDIA_TYPES:
        raise Invalid(
            say("A session is not written as {form!r}.", form=form[:40]),
            field="as",
            remedy=say("Choose one of: {media_types}.", media_types=", ".join(MEDIA_TYPES)),
        )
    kind = f"{MEDIA_TYPES[form]}; charset=utf-8"
    answer = HttpResponse(exported(session, form), content_type=kind)
    answer["Content-Disposition"] = f'attachment; filename="{filename(session, form)}"'
    answer["X-Content-Type-Options"] = "nosniff"
    return answer


def filename(session: Session, form: str) -> str:
    """Return what a session is called as a file: letters, digits and dashes of its title."""
    words = re.sub(r"[^a-z0-9]+", "-", session.title.lower()).strip("-")[:60].strip("-")
    return f"{words or 'session'}-{str(session.pk)[:8]}.{SUFFIXES[form]}"


def as_json(session: Session, steps: Sequence[Step]) -> dict[str, Any]:
    """Return a session with all its steps; those that were replaced say so."""
    replaced = superseded(steps)
    return {
        "id": str(session.pk),
        "agent": session.agent.slug,
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
        "cost_microusd": session.cost_microusd,
        "exported_at": timezone.now().isoformat(),
        "steps": [shown(step) | {"superseded": step.seq in replaced} for step in steps],
    }


def as_markdown(session: Session, steps: Sequence[Step]) -> str:
    """Return the conversation as it stands now."""
    standing = current(steps)
    return "\n\n".join([*_head(session, len(steps) - len(standing)), *_parts(standing)]) + "\n"


def _head(session: Session, replaced: int) -> Iterator[str]:
    yield f"# {_line(session.title or str(session.pk))}"
    yield (
        f"Agent `{session.agent.slug}`, started by {_line(session.started_by)} on "
        f"{session.created_at:%Y-%m-%d %H:%M} UTC, {session.status}: {session.turns} turns, "
        f"{session.calls} calls, {session.input_tokens + session.output_tokens:,} tokens."
    )
    if replaced:
        yield f"{replaced} steps were replaced by later messages and are left out."


def _parts(steps: Iterable[Step]) -> Iterator[str]:
    for step in steps:
        written = _WRITERS[Step.Kind(step.kind)](step)
        if written:
            yield written


def _message(step: Step) -> str:
    payload = step.payload
    names = [one.get("name", "") for one in (*payload.get("images", ()), *payload.get("files", ()))]
    files = "".join(f"\n\nAttached: `{_line(name)}`" for name in names)
    said = "\n".join(f"> {line}" for line in visible(payload["text"]).splitlines())
    return f"## {_line(payload.get('by', ''))}\n\n{said}{files}"


def _model(step: Step) -> str:
    text = visible(step.payload.get("text", "")).strip()
    if step.state == Step.State.FAILED:
        failed = _line(f"{step.payload.get('detail', '')} ({step.payload.get('code', '')})")
        text = "\n\n".join(part for part in (text, f"*No answer: {failed}*") if part)
    return f"## Agent\n\n{text}" if text else ""


def _call(step: Step) -> str:
    payload = step.payload
    arguments = json.dumps(payload.get("arguments"), indent=2, ensure_ascii=False)
    took = f", {payload['duration_ms']} ms" if payload.get("duration_ms") is not None else ""
    state = payload.get("code") or step.state
    return "\n\n".join(
        (
            f"### Call `{_line(payload.get('name', ''))}` ({state}{took})",
            _fenced(visible(arguments), "json"),
            _fenced(visible(payload.get("text", "")), ""),
        )
    )


def _notice(step: Step) -> str:
    return f"*{_line(step.payload.get('text', ''))}*"


def _end(step: Step) -> str:
    """Return why a run ended without an answer; the answer itself stands above it."""
    payload = step.payload
    if not (code := payload.get("code")):
        return ""
    why = _line(f"{payload.get('detail', '')} {payload.get('remedy', '')}")
    return f"*Ended: {why} ({code})*" if why else f"*Ended: {code}*"


_WRITERS = {
    Step.Kind.MESSAGE: _message,
    Step.Kind.MODEL: _model,
    Step.Kind.CALL: _call,
    Step.Kind.NOTICE: _notice,
    Step.Kind.END: _end,
}


def _fenced(text: str, language: str) -> str:
    """Return a block that no run of backticks inside can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _line(text: str) -> str:
    return " ".join(visible(text).replace("`", "'").split())
