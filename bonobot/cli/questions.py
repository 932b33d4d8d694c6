"""`bonobot questions …`: what servers ask the people who run sessions."""

import argparse
import json
from functools import partial
from typing import Any

from rich.prompt import Prompt

from agents.asking import address, answer, may_answer
from agents.governance.elicitations import Field, fields_of
from agents.models import Question, Session
from bonobot.cli import inbox
from bonobot.cli.group import Cli, Verb, table
from bonobot.lib.problems import Invalid
from bonobot.lib.untrusted import visible

SHOWN = ("id", "state", "server", "agent", "requested_by", "expires_at")
YES = frozenset({"y", "yes", "true", "1", "on"})


def as_json(question: Question) -> dict[str, Any]:
    """Return a question as programs read it."""
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
        "url": address(question),
    }


def answer_here(cli: Cli, session: Session) -> bool:
    """Ask whoever sits at the terminal what servers want to know; tell whether all was answered."""
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
            content = {one.name: _typed(cli, one) for one in fields_of(question.schema)}
        answer(cli.principal, question, "accept", content)
    return True


def tell(cli: Cli, session: Session) -> None:
    """Say what servers ask in the session, and how it is answered."""
    for question in session.questions.waiting():
        cli.say(f"{visible(question.server_name, 120)} asks: {visible(question.message, 500)}")
        cli.say(f"bonobot questions answer {question.pk} accept   (or {address(question)})")


def _typed(cli: Cli, field: Field) -> Any:
    name = visible(field.title or field.name, 120)
    choices = f" ({', '.join(value for value, _ in field.options)})" if field.options else ""
    said = Prompt.ask(f"{name}{visible(choices, 500)}", console=cli.err, default="").strip()
    return _value(field, said) if said else None


def _value(field: Field, said: str) -> Any:
    """Return what was typed as the protocol has it."""
    if field.kind == "boolean":
        return said.lower() in YES
    if field.kind == "choices":
        return [one.strip() for one in said.split(",")]
    if field.kind not in ("integer", "number"):
        return said
    try:
        return int(said) if field.kind == "integer" else float(said)
    except ValueError:
        raise Invalid(
            f"`{field.name}` is no {field.kind}.", field=field.name, remedy="Write digits."
        ) from None


def _find(cli: Cli, pk: str) -> Question:
    found: Question = inbox.find(cli, Question, pk)
    return found


def _list(cli: Cli, options: argparse.Namespace) -> None:
    def drawn(found: list[dict[str, Any]]) -> Any:
        rows = [[*inbox.line(one, *SHOWN[:-1]), one["message"][:80]] for one in found]
        columns = ("ID", "STATE", "SERVER", "AGENT", "ASKED OF", "EXPIRES", "QUESTION")
        return table(*columns, rows=rows, empty="No server asks anything.")

    inbox.show_list(cli, options, Question, as_json, drawn)


def _show(cli: Cli, options: argparse.Namespace) -> None:
    question = _find(cli, options.id)
    cli.emit(as_json(question))
    if not cli.as_json:
        _draw(cli, question)


def _draw(cli: Cli, question: Question) -> None:
    shown = as_json(question)
    rows = [(name, shown[name]) for name in (*SHOWN, "message", "url_to_visit", "answered_by")]
    rows.append(("warnings", ", ".join(question.flags)))
    if question.mode == Question.Mode.FORM:
        for field in fields_of(question.schema):
            needed = ", required" if field.required else ""
            choices = f": {', '.join(value for value, _ in field.options)}" if field.options else ""
            rows.append((f"  {field.name}", f"{field.kind}{needed}{choices}"))
    cli.emit(None, table("", "", rows=[row for row in rows if row[1]], empty=""))


def _answer_arguments(parser: argparse.ArgumentParser) -> None:
    inbox.declare_id(parser)
    parser.add_argument("action", choices=["accept", "decline", "cancel"])
    parser.add_argument("--content", default="", metavar="JSON", help="the values of the form")
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help="one value of it")


def _answer(cli: Cli, options: argparse.Namespace) -> None:
    question = _find(cli, options.id)
    content = _content(options, tuple(fields_of(question.schema)) if question.schema else ())
    done = answer(cli.principal, question, options.action, content)
    cli.emit(as_json(done))
    cli.say(f"{visible(done.server_name, 120)}: {done.state}")


def _content(options: argparse.Namespace, fields: tuple[Field, ...]) -> dict[str, Any]:
    try:
        content = json.loads(options.content) if options.content else {}
    except ValueError as error:
        raise Invalid(f"It is no JSON: {error}.", field="--content") from None
    if not isinstance(content, dict):
        raise Invalid("It is no JSON object.", field="--content")
    known = {field.name: field for field in fields}
    for pair in options.set or ():
        name, parted, said = pair.partition("=")
        if not parted:
            raise Invalid(f"{pair!r} is not like NAME=VALUE.", field="--set")
        content[name] = _value(known[name], said) if name in known else said
    return content


VERBS = (
    Verb(
        "list",
        f"List the latest {inbox.LISTED} questions that wait for a person.",
        _list,
        partial(inbox.declare_list, model=Question),
        ("questions list", "questions list --watch", "questions list --state all --json"),
    ),
    Verb(
        "show",
        "Show what a server asks: its form, or the page to visit.",
        _show,
        inbox.declare_id,
        ("questions show 0198c0de-…",),
    ),
    Verb(
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
