"""The command group `questions` (elicitation requests), and helpers shared with `approvals`."""

import argparse
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rich.prompt import Prompt

from agents.elicitations.forms import ElicitationField, fields_of
from agents.elicitations.services import answer, build_page_url, may_answer
from agents.models import Question, Session
from bonobot.core.cli import command_group
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible

LISTED = 100

Shown = dict[str, Any]


def find(cli: CommandContext, model: Any, pk: str) -> Any:
    """Return the elicitation request or approval with this id; raises `NotFound`."""
    rows = model.objects.select_related("agent")
    return rows.get_or_404(cli.principal.organization_id, pk=pk)


def add_list_arguments(parser: argparse.ArgumentParser, model: Any) -> None:
    """Add `--state` and the watch options."""
    parser.add_argument("--state", default="waiting", choices=[*model.State.values, "all"])
    command_group.add_watch_arguments(parser)


def add_id_argument(parser: argparse.ArgumentParser) -> None:
    """Add the id argument."""
    parser.add_argument("id", metavar="ID", help="id of the question, as listed")


def show_list(
    cli: CommandContext,
    options: argparse.Namespace,
    model: Any,
    as_json: Callable[[Any], Shown],
    drawn: Callable[[list[Shown]], Any],
) -> None:
    """Show the latest rows of `model` in the state that the options name."""

    def look() -> list[Shown]:
        rows = model.objects.for_organization(cli.principal.organization_id)
        if options.state != "all":
            rows = rows.filter(state=options.state)
        return [as_json(row) for row in rows.select_related("agent")[:LISTED]]

    command_group.show(cli, options, look, drawn)


def build_row(one: Mapping[str, Any], *names: str) -> list[Any]:
    """Return the table cells of a request; the last is its expiry."""
    return [*(one[name] for name in names), f"{one['expires_at']:%m-%d %H:%M}"]


SHOWN = ("id", "state", "server", "agent", "requested_by", "expires_at")
YES = frozenset({"y", "yes", "true", "1", "on"})


def as_json(question: Question) -> dict[str, Any]:
    """Return the JSON representation of an elicitation request."""
    return {
        "id": str(question.pk),
        "state": question.state,
        "server": question.server_name,
        "tool": question.own_name,
        "agent": question.agent.slug,
        "session_id": str(question.session_id),
        "requested_by": question.requested_by,
        "mode": question.mode,
        "message": question.message,
        "requested_schema": question.schema,
        "url_to_visit": question.url,
        "flags": question.flags,
        "created_at": question.created_at,
        "expires_at": question.expires_at,
        "answered_by": question.answered_by,
        "url": build_page_url(question),
    }


def answer_here(cli: CommandContext, session: Session) -> bool:
    """Ask the pending requests on the terminal; return whether they were answered."""
    asked = list(session.questions.waiting().select_related("agent").order_by("created_at"))
    if not asked or not cli.can_ask or not all(may_answer(cli.principal, one) for one in asked):
        return False
    for question in asked:
        _draw(cli, question)
        if not cli.confirm("Answer it?"):
            answer(cli.principal, question, "decline")
            continue
        content = {}
        if question.mode == Question.Mode.FORM:
            content = {one.name: _ask_field(cli, one) for one in fields_of(question.schema)}
        answer(cli.principal, question, "accept", content)
    return True


def show_elicitation_requests(cli: CommandContext, session: Session) -> None:
    """Print the session's pending elicitation requests and how to answer them."""
    for question in session.questions.waiting():
        cli.say(
            f"{make_visible(question.server_name, 120)} asks: {make_visible(question.message, 500)}"
        )
        cli.say(f"bonobot questions answer {question.pk} accept   (or {build_page_url(question)})")


def _ask_field(cli: CommandContext, field: ElicitationField) -> Any:
    name = make_visible(field.title or field.name, 120)
    choices = f" ({', '.join(value for value, _ in field.options)})" if field.options else ""
    said = Prompt.ask(f"{name}{make_visible(choices, 500)}", console=cli.err, default="").strip()
    return _value(field, said) if said else None


def _value(field: ElicitationField, said: str) -> Any:
    """Convert the typed text to the JSON type of the field; raises `InvalidInput`."""
    if field.kind == "boolean":
        return said.lower() in YES
    if field.kind == "choices":
        return [one.strip() for one in said.split(",")]
    if field.kind not in ("integer", "number"):
        return said
    try:
        return int(said) if field.kind == "integer" else float(said)
    except ValueError:
        raise InvalidInput(
            f"`{field.name}` is no {field.kind}.", field=field.name, remedy="Write digits."
        ) from None


def _find(cli: CommandContext, pk: str) -> Question:
    found: Question = find(cli, Question, pk)
    return found


def _list(cli: CommandContext, options: argparse.Namespace) -> None:
    def drawn(found: list[dict[str, Any]]) -> Any:
        rows = [[*build_row(one, *SHOWN[:-1]), one["message"][:80]] for one in found]
        columns = ("ID", "STATE", "SERVER", "AGENT", "ASKED OF", "EXPIRES", "QUESTION")
        return build_table(*columns, rows=rows, empty="No server asks anything.")

    show_list(cli, options, Question, as_json, drawn)


def _show(cli: CommandContext, options: argparse.Namespace) -> None:
    question = _find(cli, options.id)
    cli.emit(as_json(question))
    if not cli.as_json:
        _draw(cli, question)


def _draw(cli: CommandContext, question: Question) -> None:
    shown = as_json(question)
    rows = [(name, shown[name]) for name in (*SHOWN, "message", "url_to_visit", "answered_by")]
    rows.append(("warnings", ", ".join(question.flags)))
    if question.mode == Question.Mode.FORM:
        for field in fields_of(question.schema):
            needed = ", required" if field.required else ""
            choices = f": {', '.join(value for value, _ in field.options)}" if field.options else ""
            rows.append((f"  {field.name}", f"{field.kind}{needed}{choices}"))
    cli.emit(None, build_table("", "", rows=[row for row in rows if row[1]], empty=""))


def _answer_arguments(parser: argparse.ArgumentParser) -> None:
    add_id_argument(parser)
    parser.add_argument("action", choices=["accept", "decline", "cancel"])
    parser.add_argument("--content", default="", metavar="JSON", help="the values of the form")
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help="one value of it")


def _answer(cli: CommandContext, options: argparse.Namespace) -> None:
    question = _find(cli, options.id)
    content = _build_content(options, tuple(fields_of(question.schema)) if question.schema else ())
    done = answer(cli.principal, question, options.action, content)
    cli.emit(as_json(done))
    cli.say(f"{make_visible(done.server_name, 120)}: {done.state}")


def _build_content(
    options: argparse.Namespace, fields: tuple[ElicitationField, ...]
) -> dict[str, Any]:
    try:
        content = json.loads(options.content) if options.content else {}
    except ValueError as error:
        raise InvalidInput(f"It is no JSON: {error}.", field="--content") from None
    if not isinstance(content, dict):
        raise InvalidInput("It is no JSON object.", field="--content")
    known = {field.name: field for field in fields}
    for pair in options.set or ():
        name, parted, said = pair.partition("=")
        if not parted:
            raise InvalidInput(f"{pair!r} is not like NAME=VALUE.", field="--set")
        content[name] = _value(known[name], said) if name in known else said
    return content


VERBS = (
    CommandVerb(
        "list",
        f"List the latest {LISTED} questions that wait for a person.",
        _list,
        partial(add_list_arguments, model=Question),
        ("questions list", "questions list --watch", "questions list --state all --json"),
    ),
    CommandVerb(
        "show",
        "Show what a server asks: its form, or the page to visit.",
        _show,
        add_id_argument,
        ("questions show 0198c0de-…",),
    ),
    CommandVerb(
        "answer",
        "Answer a server's question; the session goes on by itself.",
        _answer,
        _answer_arguments,
        (
            "questions answer 0198c0de-… accept --set name=Ada --set age=36",
            "questions answer 0198c0de-… decline",
        ),
    ),
)
