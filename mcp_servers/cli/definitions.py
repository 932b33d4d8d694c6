"""The commands `mcp approve`, `mcp reject` and `mcp label`: review and label definitions."""

import argparse
import json
from collections.abc import Iterable, Sequence
from difflib import unified_diff
from typing import Any

from bonobot.accounts.roles import Action
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import Conflict, InvalidInput, NotFound
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.discovery import show_review_findings, show_review_result
from mcp_servers.cli.servers import get_server
from mcp_servers.definition_reviews import (
    DefinitionReviewResult,
    approve_definitions,
    needs_own_review,
    reject_definition,
)
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import (
    get_effective_labels,
    load_label_context,
    set_labels,
    suggest_labels,
)
from mcp_servers.models import Definition, Server

NAMES_REMEDY = "List the names: bonobot mcp label SERVER"
OPTIONS = {
    "private": (FlowLabel.PRIVATE_DATA, "Reads private data"),
    "untrusted": (FlowLabel.UNTRUSTED_CONTENT, "Returns untrusted content"),
    "sends": (FlowLabel.SENDS_OUT, "Has an external effect"),
    "repeatable": (FlowLabel.REPEATABLE, "Is idempotent"),
}


MIN_DIGEST_LENGTH = 12
MAX_DESCRIPTION_SHOWN = 500
MAX_DIFF_LINES = 200
_APPROVE_ARGUMENTS = (
    Argument("SERVER", "Slug, name, or ID of the server"),
    Argument("NAME", "Only these definitions (default: all new ones)", nargs="*", dest="names"),
    Argument(
        "--digest DIGEST",
        "Only the definition with this digest, as shown before. Repeatable",
        action="append",
    ),
    Argument("--yes", "Don't ask for confirmation"),
)
_REJECT_ARGUMENTS = (
    Argument("SERVER", "Slug, name, or ID of the server"),
    Argument("NAME", "Definitions to reject", nargs="+", dest="names"),
    Argument("--reason REASON", "Why they are rejected", required=True),
)


def _add_label_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="Slug, name, or ID of the server")
    parser.add_argument("names", metavar="TOOL", nargs="*", help="Names of tools on the server")
    for name, (_label, text) in OPTIONS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument(
        "--none", action="store_true", help="Set no labels, overriding the suggested ones"
    )
    parser.add_argument("--suggested", action="store_true", help="Use the suggested labels")


def _label_definitions(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    rows = server.definitions.exclude(kind=Definition.Kind.INSTRUCTIONS)
    labels = [label for name, (label, _) in OPTIONS.items() if getattr(options, name)]
    mode_count = bool(labels) + options.none + options.suggested
    if mode_count > 1:
        raise InvalidInput(
            "Labels, --none, and --suggested can't be combined.",
            field="--none",
            remedy="Use only one of them.",
        )
    if mode_count and not options.names:
        raise InvalidInput(
            "No tools are specified.",
            field="TOOL",
            remedy="Add the names of the tools to label.",
        )
    definitions = list(rows.filter(name__in=options.names) if options.names else rows)
    if missing := sorted({*options.names} - {row.name for row in definitions}):
        raise NotFound(
            f"{server.name} has no definition {missing[0]!r}.", field="TOOL", remedy=NAMES_REMEDY
        )
    if mode_count:
        set_labels(cli.principal, server, definitions, None if options.suggested else labels)
        definitions = list(rows.filter(name__in=options.names))
    _show_labels(cli, server, definitions)


def _show_labels(cli: CommandContext, server: Server, rows: list[Definition]) -> None:
    label_context = load_label_context(server)
    serialized = [
        {
            "kind": row.kind,
            "name": row.name,
            "labels": row.labels,
            "labels_suggested": [*suggest_labels(row, label_context)],
        }
        for row in rows
    ]
    cli.emit(serialized)
    if not cli.as_json:
        lines = [
            (
                make_visible(row.name, 60),
                ", ".join(get_effective_labels(row, label_context)) or "none",
                "suggested" if row.labels is None else "set",
            )
            for row in rows
        ]
        cli.print_result(
            build_table("NAME", "LABELS", "SOURCE", rows=lines, empty="No definitions.")
        )


LABEL_VERBS = (
    CommandVerb(
        "label",
        "Show or set the flow labels of tools",
        _label_definitions,
        arguments=(_add_label_arguments,),
        examples=(
            "mcp label github",
            "mcp label mail send_mail reply --sends",
            "mcp label mail read_mail --private --untrusted",
            "mcp label time get_current_time --none",
        ),
    ),
)


def _approve_definitions(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    pending_definitions = list(server.definitions.awaiting_review().order_by("kind", "name"))
    named_definitions = _select_by_name(server, options.names) + _select_by_digest(
        server, options.digest or ()
    )
    if named_definitions:
        selected, left_out = named_definitions, []
    else:
        selected = [row for row in pending_definitions if not needs_own_review(row)]
        left_out = [row for row in pending_definitions if needs_own_review(row)]
    if not cli.as_json:
        for row in selected:
            _show_definition(cli, row)
    _check_changes_are_confirmed(cli, options, selected)
    must_ask = selected and cli.can_ask and not options.yes
    if must_ask and not cli.confirm(f"Approve {format_count(len(selected), 'definition')}?"):
        cli.print_message("Nothing was approved.")
        return
    digests = {row.pk: row.digest for row in selected}
    result = DefinitionReviewResult((), ())
    if digests:
        result = approve_definitions(cli.principal, server, digests)
    held_names = tuple(str(row) for row in left_out)
    result = DefinitionReviewResult(result.approved, result.skipped, held_names)
    cli.emit(
        {
            "approved": result.approved,
            "skipped": result.skipped,
            "needs_review": result.needs_review,
        }
    )
    show_review_result(cli, server, result)
    for row in left_out:
        if row.state == Definition.State.CHANGED:
            _show_change_hint(cli, server, row)


def review_new_server(cli: CommandContext, server: Server, *, approve: bool = False) -> None:
    """Approve the definitions of an added server, except suspicious ones; ask on a terminal.

    Without `approve` and without a terminal, they stay pending review.
    """
    if approve:
        approve_definitions(cli.principal, server)
        show_review_findings(cli, server)
        return
    pending_definitions = list(server.definitions.awaiting_review().order_by("kind", "name"))
    selected = [row for row in pending_definitions if not needs_own_review(row)]
    if not (pending_definitions and cli.can_ask and cli.principal.may(Action.APPROVE_DEFINITIONS)):
        return
    for row in selected:
        _show_definition(cli, row)
    question = (
        f"Approve {format_count(len(selected), 'definition')}, so that agents can use "
        f"{'it' if len(selected) == 1 else 'them'}?"
    )
    if selected and cli.confirm(question, default=True):
        digests = {row.pk: row.digest for row in selected}
        show_review_result(cli, server, approve_definitions(cli.principal, server, digests))
    show_review_findings(cli, server)


def _select_by_name(server: Server, names: Sequence[str]) -> list[Definition]:
    rows = {row.name: row for row in server.definitions.filter(name__in=names)}
    if missing := [name for name in names if name not in rows]:
        raise NotFound(
            f"{server.name} has no definition {missing[0]!r}.",
            field="NAME",
            remedy=f"List the definitions: bonobot mcp show {server.slug}",
        )
    return list(rows.values())


def _select_by_digest(server: Server, digests: Iterable[str]) -> list[Definition]:
    rows = []
    for digest in digests:
        matching = list(server.definitions.filter(digest__startswith=digest)[:2])
        if len(digest) < MIN_DIGEST_LENGTH or len(matching) != 1:
            raise NotFound(
                f"{server.name} has no definition with the digest {digest!r}.",
                field="--digest",
                remedy="Use at least 12 characters. If the definition changed since you saw it, "
                f"review it again: bonobot mcp approve {server.slug}",
            )
        rows += matching
    return rows


def _check_changes_are_confirmed(
    cli: CommandContext, options: argparse.Namespace, selected: Sequence[Definition]
) -> None:
    """Raise `Conflict` for changed definitions that a script doesn't name by their digest."""
    if cli.can_ask and not options.yes:
        return
    for row in selected:
        is_named = any(row.digest.startswith(digest) for digest in options.digest or ())
        if row.state == Definition.State.CHANGED and not is_named:
            raise Conflict(
                f"{make_visible(str(row), 120)} changed since it was approved.",
                code="definition_changed",
                field="--digest",
                remedy="Review the change on a terminal, or name its digest: "
                f"--digest {row.digest[:MIN_DIGEST_LENGTH]}",
            )


def _show_definition(cli: CommandContext, row: Definition) -> None:
    state = "changed" if row.state == Definition.State.CHANGED else "new"
    digest = row.digest[:MIN_DIGEST_LENGTH]
    cli.print_message(f"{state} {row.kind} {make_visible(row.name, 120)} (digest {digest})")
    if row.state != Definition.State.CHANGED:
        if row.description:
            cli.print_message(f"    {make_visible(row.description, MAX_DESCRIPTION_SHOWN)}")
        return
    lines = list(
        unified_diff(_to_lines(row.pinned), _to_lines(row.payload), "approved", "now", lineterm="")
    )
    for line in lines[:MAX_DIFF_LINES]:
        cli.print_message(f"    {make_visible(line, MAX_DESCRIPTION_SHOWN)}")
    if len(lines) > MAX_DIFF_LINES:
        cli.print_message(f"    … {format_count(len(lines) - MAX_DIFF_LINES, 'more line')}")


def _to_lines(value: Any) -> list[str]:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).splitlines()


def _show_change_hint(cli: CommandContext, server: Server, row: Definition) -> None:
    name = make_visible(row.name, 120) or "instructions"
    cli.print_message(f"! {name} changed since it was approved.")
    cli.print_message(
        f"  To see the change and approve it: bonobot mcp approve {server.slug} {name!r}"
    )


def _reject_definitions(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    rows = _select_by_name(server, options.names)
    for row in rows:
        reject_definition(cli.principal, row, row.digest, options.reason)
    names = [str(row) for row in rows]
    cli.emit({"rejected": names})
    cli.print_message(f"Rejected: {', '.join(make_visible(name, 120) for name in names)}.")


VERBS = (
    CommandVerb(
        "reject",
        "Reject definitions of a server that are pending review",
        _reject_definitions,
        arguments=_REJECT_ARGUMENTS,
        examples=('mcp reject git git_push --reason "Agents must not push."',),
    ),
    CommandVerb(
        "approve",
        "Show and approve definitions of a server that are pending review",
        _approve_definitions,
        arguments=_APPROVE_ARGUMENTS,
        examples=(
            "mcp approve time",
            "mcp approve git git_log git_status",
            "mcp approve git --digest 3f9c0a7be1d2 --yes",
        ),
    ),
)
