"""The command group `questions` (elicitation requests), and helpers shared with `approvals`."""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agents.models import ElicitationRequest, Session
from agents.models.page_urls import build_page_url
from bonobot.core.cli import watch_rows
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import InvalidInput
from bonobot.core.text.json_reader import describe_json_error
from bonobot.core.text.untrusted_text import make_visible

if TYPE_CHECKING:
    from agents.elicitations.requested_schemas import ElicitationField

MAX_LISTED = 100

SerializedRow = dict[str, Any]


def get_request(cli: CommandContext, model: Any, pk: str) -> Any:
    """Return the elicitation request or approval with this id; raises `NotFound`."""
    rows = model.objects.select_related("agent")
    return rows.get_or_404(cli.principal.organization_id, pk=pk)


def build_list_arguments(model: Any) -> tuple[Argument, ...]:
    """Return `--state`, with the states of `model`, and the watch options."""
    states = [*model.State.values, "all"]
    help_text = "Only this state (default: waiting)"
    return (
        Argument("--state", help_text, default="waiting", choices=states),
        *watch_rows.WATCH_ARGUMENTS,
    )


ID_ARGUMENT = Argument("ID", "ID, as shown by `list`")


def list_requests(
    cli: CommandContext,
    options: argparse.Namespace,
    model: Any,
    serialize: Callable[[Iterable[Any]], list[SerializedRow]],
    render: Callable[[list[SerializedRow]], Any],
) -> None:
    """Show the latest rows of `model` in the state that the options name."""

    def load_rows() -> list[SerializedRow]:
        rows = model.objects.for_organization(cli.principal.organization_id)
        if options.state != "all":
            rows = rows.filter(state=options.state)
        return serialize(rows.select_related("agent")[:MAX_LISTED])

    watch_rows.show_rows(cli, options, load_rows, render)


def build_row(request: Mapping[str, Any], *names: str) -> list[Any]:
    """Return the table cells of a request; the last is its expiry."""
    return [*(request[name] for name in names), f"{request['expires_at']:%m-%d %H:%M}"]


SHOWN_FIELDS = ("id", "state", "server", "agent", "requested_by", "expires_at")
YES_ANSWERS = frozenset({"y", "yes", "true", "1", "on"})


def _serialize_requests(questions: Iterable[ElicitationRequest]) -> list[SerializedRow]:
    return [serialize_elicitation_request(question) for question in questions]


def serialize_elicitation_request(question: ElicitationRequest) -> dict[str, Any]:
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


def answer_at_terminal(cli: CommandContext, session: Session) -> bool:
    """Ask the pending requests on the terminal; return whether they were answered."""
    from agents.elicitations.requested_schemas import iterate_fields
    from agents.elicitations.services import answer_request, can_answer

    pending_requests = ElicitationRequest.objects.pending().in_session_tree(session.pk)
    pending = list(pending_requests.select_related("agent"))
    if (
        not pending
        or not cli.can_ask
        or not all(can_answer(cli.principal, item) for item in pending)
    ):
        return False
    for question in pending:
        _print_elicitation_request(cli, question)
        if not cli.confirm("Answer this request?"):
            answer_request(cli.principal, question, "decline")
            continue
        content = {}
        if question.mode == ElicitationRequest.Mode.FORM:
            content = {item.name: _ask_field(cli, item) for item in iterate_fields(question.schema)}
        answer_request(cli.principal, question, "accept", content)
    return True


def show_elicitation_requests(cli: CommandContext, session: Session) -> None:
    """Print the session's pending elicitation requests and how to answer them."""
    for question in ElicitationRequest.objects.pending().in_session_tree(session.pk):
        cli.print_message(
            f"{make_visible(question.server_name, 120)} requests input: "
            f"{make_visible(question.message, 500)}"
        )
        cli.print_message(
            f"bonobot elicitations answer {question.pk} accept   "
            f"(or open {build_page_url(question)})"
        )


def _ask_field(cli: CommandContext, field: "ElicitationField") -> Any:
    from rich.prompt import Prompt

    name = make_visible(field.title or field.name, 120)
    choices = f" ({', '.join(value for value, _ in field.options)})" if field.options else ""
    text = Prompt.ask(f"{name}{make_visible(choices, 500)}", console=cli.err, default="").strip()
    return _parse_value(field, text) if text else None


def _parse_value(field: "ElicitationField", text: str) -> Any:
    """Convert the typed text to the JSON type of the field; raises `InvalidInput`."""
    if field.kind == "boolean":
        return text.lower() in YES_ANSWERS
    if field.kind == "choices":
        return [choice.strip() for choice in text.split(",")]
    if field.kind not in ("integer", "number"):
        return text
    try:
        return int(text) if field.kind == "integer" else float(text)
    except ValueError:
        raise InvalidInput(
            f"`{field.name}` isn't a valid {field.kind}.",
            field=field.name,
            remedy="Enter a number.",
        ) from None


def _get_elicitation_request(cli: CommandContext, pk: str) -> ElicitationRequest:
    question: ElicitationRequest = get_request(cli, ElicitationRequest, pk)
    return question


def _list_elicitation_requests(cli: CommandContext, options: argparse.Namespace) -> None:
    def render_requests(requests: list[dict[str, Any]]) -> Any:
        rows = [
            [*build_row(request, *SHOWN_FIELDS[:-1]), request["message"][:80]]
            for request in requests
        ]
        columns = ("ID", "STATE", "SERVER", "AGENT", "REQUESTED FROM", "EXPIRES", "MESSAGE")
        return build_table(*columns, rows=rows, empty="No elicitation requests.")

    list_requests(cli, options, ElicitationRequest, _serialize_requests, render_requests)


def _show_elicitation_request(cli: CommandContext, options: argparse.Namespace) -> None:
    question = _get_elicitation_request(cli, options.id)
    cli.emit(serialize_elicitation_request(question))
    if not cli.as_json:
        _print_elicitation_request(cli, question)


def _print_elicitation_request(cli: CommandContext, question: ElicitationRequest) -> None:
    from agents.elicitations.requested_schemas import iterate_fields

    serialized = serialize_elicitation_request(question)
    rows = [
        (name, serialized[name])
        for name in (*SHOWN_FIELDS, "message", "url_to_visit", "answered_by")
    ]
    rows.append(("warnings", ", ".join(question.flags)))
    if question.mode == ElicitationRequest.Mode.FORM:
        for field in iterate_fields(question.schema):
            required_mark = ", required" if field.required else ""
            choices = f": {', '.join(value for value, _ in field.options)}" if field.options else ""
            rows.append((f"  {field.name}", f"{field.kind}{required_mark}{choices}"))
    cli.emit(None, build_table("", "", rows=[row for row in rows if row[1]], empty=""))


_ANSWER_ARGUMENTS = (
    ID_ARGUMENT,
    Argument("action", "Response to the server", choices=["accept", "decline", "cancel"]),
    Argument("--content JSON", "Form values as a JSON object", default=""),
    Argument("--set NAME=VALUE", "One form value. Repeatable", action="append"),
)


def _answer_elicitation_request(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.elicitations.requested_schemas import iterate_fields
    from agents.elicitations.services import answer_request

    question = _get_elicitation_request(cli, options.id)
    content = _build_content(
        options, tuple(iterate_fields(question.schema)) if question.schema else ()
    )
    answered_request = answer_request(cli.principal, question, options.action, content)
    cli.emit(serialize_elicitation_request(answered_request))
    cli.print_message(
        f"{make_visible(answered_request.server_name, 120)}: {answered_request.state}"
    )


def _build_content(
    options: argparse.Namespace, fields: "tuple[ElicitationField, ...]"
) -> dict[str, Any]:
    try:
        content = json.loads(options.content) if options.content else {}
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"The form values are not valid JSON: {describe_json_error(error)}.", field="--content"
        ) from None
    if not isinstance(content, dict):
        raise InvalidInput("The form values must be a JSON object.", field="--content")
    fields_by_name = {field.name: field for field in fields}
    for pair in options.set or ():
        name, separator, value = pair.partition("=")
        if not separator:
            raise InvalidInput(f"{pair!r} doesn't have the format NAME=VALUE.", field="--set")
        content[name] = (
            _parse_value(fields_by_name[name], value) if name in fields_by_name else value
        )
    return content


VERBS = (
    CommandVerb(
        "list",
        f"List the latest {MAX_LISTED} elicitation requests (default: pending ones)",
        _list_elicitation_requests,
        arguments=build_list_arguments(ElicitationRequest),
        examples=(
            "elicitations list",
            "elicitations list --watch",
            "elicitations list --state all --json",
        ),
    ),
    CommandVerb(
        "show",
        "Show an elicitation request with its form fields or URL",
        _show_elicitation_request,
        arguments=(ID_ARGUMENT,),
        examples=("elicitations show 0198c0de-…",),
    ),
    CommandVerb(
        "answer",
        "Answer an elicitation request. The session continues automatically.",
        _answer_elicitation_request,
        arguments=_ANSWER_ARGUMENTS,
        examples=(
            "elicitations answer 0198c0de-… accept --set name=Ada --set age=36",
            "elicitations answer 0198c0de-… decline",
        ),
    ),
)
