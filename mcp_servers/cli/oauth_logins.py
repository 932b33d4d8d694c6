"""The commands `mcp login` and `mcp logout`."""

import argparse
import time
import webbrowser
from dataclasses import replace
from typing import Any

from bonobot.core.cli.command_group import Argument, CommandContext, CommandFailed, CommandVerb
from bonobot.core.cli.watch_rows import pause
from bonobot.core.problems import Conflict, Problem
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.definitions import review_new_server
from mcp_servers.cli.discovery import discover_with_progress
from mcp_servers.cli.servers import get_server
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth_client import authorization_code
from mcp_servers.oauth_client.access_tokens import build_login_url, can_authenticate

POLL_INTERVAL_S = 0.5
MAX_WAIT_S = 600.0  # the lifetime of a started login


_SERVER_ARGUMENT = (Argument("SERVER", "Slug, name, or ID of the server"),)


_LOGIN_ARGUMENTS = (
    *_SERVER_ARGUMENT,
    Argument("--open", "Open the URL in this host's browser"),
    Argument("--no-wait", "Print the URL without waiting for the sign-in"),
    Argument(
        "--timeout SECONDS",
        f"Maximum time to wait, in seconds (default: {MAX_WAIT_S:g})",
        type=float,
        default=MAX_WAIT_S,
    ),
)


def _sign_in(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    if not server.interactive:
        raise Conflict(
            f"{server.name!r} doesn't use sign-in in a browser.",
            code="no_login",
            field="SERVER",
            remedy="Only servers that use the OAuth authorization code flow need this.",
        )
    url = build_login_url(server.pk)
    previous_versions = _load_grant_versions(server)
    if options.no_wait:
        cli.emit(_serialize_login(server, url, signed_in=False))
        cli.print_message(f"Sign in at {url}")
        return
    # On stderr, so that programs can show it before the JSON is complete.
    cli.err.print(f"Sign in at {url}", markup=False, soft_wrap=True)
    if options.open:
        webbrowser.open(url)
    with cli.show_spinner("Waiting for the sign-in…"):
        has_signed_in = _wait_for_login(server, previous_versions, options.timeout)
    if not has_signed_in:
        raise Problem(
            f"The sign-in to {server.name!r} wasn't completed in time.",
            code="needs_reauth",
            remedy=f"Open {url} and try again.",
        )
    outcome = discover_with_progress(cli, [server])[server.name]
    if outcome.problem is None and cli.can_ask:
        review_new_server(cli, server)
        pending_review = server.definitions.awaiting_review().count()
        outcome = replace(outcome, pending_review=pending_review)
    cli.emit(_serialize_login(server, url, signed_in=True) | {"discovery": outcome.as_dict()})
    cli.print_message(make_visible(f"Signed in to {server.name}. {outcome.format_summary()}"))
    if outcome.problem is not None:
        raise CommandFailed


def _sign_out(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    authorization_code.sign_out(cli.principal, server)
    cli.emit(_serialize_login(server, build_login_url(server.pk), signed_in=False))
    cli.print_message(
        make_visible(f"Signed out of {server.name}. Its next call requires a new sign-in.")
    )


def _serialize_login(server: Server, url: str, *, signed_in: bool) -> dict[str, Any]:
    return {"server": server.slug, "url": url, "signed_in": signed_in}


def _load_grant_versions(server: Server) -> dict[Any, int]:
    """Return the version of the stored tokens by subject."""
    rows = OAuthGrant.objects.filter(server=server)
    return dict(rows.values_list("subject", "version"))


def _wait_for_login(server: Server, previous_versions: dict[Any, int], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while True:
        for row in OAuthGrant.objects.filter(server=server):
            if can_authenticate(row) and previous_versions.get(row.subject, -1) < row.version:
                return True
        if time.monotonic() >= deadline:
            return False
        pause(POLL_INTERVAL_S)


VERBS = (
    CommandVerb(
        "login",
        "Print the sign-in URL of a server and wait for the sign-in",
        _sign_in,
        arguments=_LOGIN_ARGUMENTS,
        examples=(
            "mcp login linear",
            "mcp login linear --open",
            "mcp login linear --no-wait --json",
        ),
    ),
    CommandVerb(
        "logout",
        "Sign the organization out of a server and revoke its tokens",
        _sign_out,
        arguments=_SERVER_ARGUMENT,
        examples=("mcp logout linear",),
    ),
)
