"""UpstreamError and the functions that build it.

Text from the server is shortened, with hidden characters made visible and secrets masked.
"""

import re
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

from bonobot.core.http.connection_errors import find_failure
from bonobot.core.http.egress import EgressDenied
from bonobot.core.i18n.messages import TranslatableMessage, format_message
from bonobot.core.problems import Problem
from bonobot.core.text.masking import MASK, MIN_SECRET_LENGTH, mask_text
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.client.endpoint import ServerEndpoint

MAX_QUOTE_LENGTH = 500
MAX_CAUSE_LENGTH = 240
MAX_CHALLENGE_LENGTH = 2000
UNREACHABLE_REMEDY = format_message("Check that the server is running and that its URL is correct.")
# How Node, Python and other programs report a file that they can't read.
_MISSING_PATH = re.compile(
    r"cannot (?:find|access)|no such file|can't open|ENOENT|not found|does(?: not|n't) exist"
    r"|not a valid",
    re.IGNORECASE,
)
# What Node and npm print after the cause: the stack, the error's fields, the version.
_CLOSING_LINE = re.compile(
    r"at |[\[\]{}(),]+$|(?:code|errno|path|requireStack|syscall): |Node\.js v\d"
    r"|Require stack:|- (?:/|file:)|npm (?:error|ERR!) A complete log of this run"
)
# HTTP statuses by code; other errors have 502.
STATUSES = {
    "bad_url": 503,
    "bundle_changed": 503,
    "call_timeout": 504,
    "egress_denied": 503,
    "folder_not_allowed": 503,
    "installation_failed": 503,
    "private_address": 503,
    "sandbox_unavailable": 503,
    "server_crashed": 503,
    "server_installing": 503,
    "server_unreachable": 503,
    "variable_not_allowed": 503,
}


class UpstreamError(Problem):
    """A server that couldn't be used, or that answered with an error.

    Codes: `server_unreachable`, `call_timeout`, `needs_reauth`, `server_crashed`,
    `sandbox_unavailable`, `variable_not_allowed`, `folder_not_allowed`, `bundle_changed`,
    `server_installing`, `installation_failed`, `protocol_error`, `response_too_large`,
    `upstream_error` (a JSON-RPC error: `rpc_code`, `rpc_message`, `rpc_data`), and those of egress.

    `sent` says whether the server may have seen the request: only if False, it had no effect.
    `temporary` says that the same request may succeed later, and `retryable` that it may be sent
    again: never if it was sent. `answered` says that the server's answer was read: the call isn't
    complete. `summary` is the detail without output of the server.
    """

    code = "upstream_error"
    status = 502
    title = "MCP server error"

    def __init__(
        self,
        detail: str,
        *,
        code: str,
        server: str,
        temporary: bool = False,
        sent: bool = True,
        rpc_code: int | None = None,
        rpc_message: str = "",
        rpc_data: Any = None,
        http_status: int | None = None,
        remedy: str = "",
        field: str = "",
        retry_after: float | None = None,
        extra: Mapping[str, Any] | None = None,
        summary: str = "",
        answered: bool = False,
    ) -> None:
        super().__init__(
            detail,
            code=code,
            remedy=remedy,
            field=field,
            status=STATUSES.get(code),
            retry_after=retry_after,
            extra={"server": server, **(extra or {})},
        )
        self.server = server
        self.temporary = temporary
        self.sent = sent
        self.rpc_code = rpc_code
        self.rpc_message = rpc_message
        self.rpc_data = rpc_data
        self.http_status = http_status
        self.summary = summary or detail
        self.answered = answered

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later and had no effect yet."""
        return self.temporary and not self.sent

    def with_sent(self, sent: bool) -> "UpstreamError":
        """Return a copy for another request, which was sent before this failure or never."""
        error = copy(self)
        error.sent = sent
        return error.with_traceback(None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without calling `__init__`, which requires keyword arguments."""
        return _build_blank_error, (type(self), self.args), self.__dict__


class ConnectionClosed(UpstreamError):
    """Bonobot closed the connection, which says nothing about the server."""


def quote_text(endpoint: ServerEndpoint, text: str, limit: int = MAX_QUOTE_LENGTH) -> str:
    """Return text from a server with secrets masked, cut to `limit` visible characters."""
    return make_visible(mask_text(text[: 4 * limit], endpoint.secrets), limit)


def build_unreachable_error(
    endpoint: ServerEndpoint,
    reason: str,
    *,
    sent: bool = False,
    remedy: str = UNREACHABLE_REMEDY,
    http_status: int | None = None,
    retry_after: float | None = None,
    summary: str = "",
) -> UpstreamError:
    """Return the error of a server that can't be reached or whose connection was lost."""
    return UpstreamError(
        format_message(
            "`{endpoint}` can't be reached: {why}.",
            endpoint=endpoint.name,
            why=_strip_period(reason),
        ),
        code="server_unreachable",
        server=endpoint.name,
        temporary=True,
        sent=sent,
        remedy=remedy,
        http_status=http_status,
        retry_after=retry_after,
        summary=summary,
    )


def build_closed_error(endpoint: ServerEndpoint) -> UpstreamError:
    """Return the error of a request whose connection Bonobot closed."""
    return ConnectionClosed(
        format_message("The connection to `{endpoint}` was closed.", endpoint=endpoint.name),
        code="server_unreachable",
        server=endpoint.name,
        temporary=True,
        sent=False,
        remedy="Try again.",
    )


def build_connection_error(
    endpoint: ServerEndpoint, error: Exception, *, sent: bool
) -> UpstreamError:
    """Return the error of a connection that failed or was lost."""
    if failure := find_failure(error):
        return build_unreachable_error(endpoint, failure.reason, sent=sent, remedy=failure.remedy)
    return build_unreachable_error(
        endpoint,
        quote_text(endpoint, str(error)) or type(error).__name__,
        sent=sent,
        summary=format_message("The connection to `{endpoint}` was lost.", endpoint=endpoint.name),
    )


def build_sandbox_error(endpoint: ServerEndpoint, reason: str, remedy: str) -> UpstreamError:
    """Return the error of a server whose sandbox doesn't work on this host."""
    return _build_start_refusal(
        endpoint, reason, code="sandbox_unavailable", remedy=remedy, field="sandbox"
    )


def build_required_sandbox_error(
    endpoint: ServerEndpoint, reason: str, remedy: str
) -> UpstreamError:
    """Return the error of an organization's server if sandboxes don't work on this host."""
    return _build_start_refusal(
        endpoint,
        format_message("servers of organizations must run in a sandbox, but {why}", why=reason),
        code="sandbox_unavailable",
        remedy=remedy,
        field="sandbox",
    )


def build_variable_error(
    endpoint: ServerEndpoint, name: str, reason: TranslatableMessage | None
) -> UpstreamError:
    """Return the error of a server with a dangerous variable that no exception names."""
    return _build_start_refusal(
        endpoint,
        format_message(
            "the environment variable `{name}` requires an exception because {why}",
            name=make_visible(name, 100),
            why=reason,
        ),
        code="variable_not_allowed",
        remedy=format_message(
            "Remove the variable, or ask a platform administrator to add an "
            "exception for this server."
        ),
        field=f"endpoint_config.env.{name}",
    )


def build_missing_folder_error(endpoint: ServerEndpoint) -> UpstreamError:
    """Return the error of a server whose working directory doesn't exist on this host."""
    return UpstreamError(
        format_message(
            "`{endpoint}` wasn't started: its folder `{folder}` doesn't exist on this host.",
            endpoint=endpoint.name,
            folder=make_visible(endpoint.cwd or "", 200),
        ),
        code="server_unreachable",
        server=endpoint.name,
        sent=False,
        remedy="Create the folder, or correct `cwd`.",
        field="endpoint_config.cwd",
    )


def build_folder_error(endpoint: ServerEndpoint, reason: str) -> UpstreamError:
    """Return the error of a server whose folder isn't allowed."""
    return _build_start_refusal(
        endpoint,
        format_message("its folder can't be used because {why}", why=reason),
        code="folder_not_allowed",
        remedy=format_message(
            "Use the server's own folder or a folder in the organization's workspace."
        ),
        field="endpoint_config.cwd",
    )


def build_bundle_error(endpoint: ServerEndpoint) -> UpstreamError:
    """Return the error of a server whose bundle's files aren't those that were uploaded."""
    return _build_start_refusal(
        endpoint,
        format_message("the files of its bundle on this host were changed"),
        code="bundle_changed",
        remedy=format_message(
            "Find out what changed them. Then delete the bundle's folder in `BONOBOT_VAR`; it is "
            "unpacked again."
        ),
        field="endpoint_config.bundle",
    )


def build_installing_error(endpoint: ServerEndpoint, progress: str) -> UpstreamError:
    """Return the error of a server whose package is being installed."""
    detail = (
        format_message(
            "`{endpoint}` is being installed: {progress}.",
            endpoint=endpoint.name,
            progress=_strip_period(quote_text(endpoint, progress)),
        )
        if progress
        else format_message("`{endpoint}` is being installed.", endpoint=endpoint.name)
    )
    return UpstreamError(
        detail,
        code="server_installing",
        server=endpoint.name,
        sent=False,
        temporary=True,
        retry_after=10,
        remedy="Try again in a minute. The server's page shows the progress of the installation.",
    )


def build_installation_error(endpoint: ServerEndpoint, reason: str) -> UpstreamError:
    """Return the error of a server whose package couldn't be installed."""
    return UpstreamError(
        format_message(
            "`{endpoint}` couldn't be installed: {why}.", endpoint=endpoint.name, why=reason
        ),
        code="installation_failed",
        server=endpoint.name,
        sent=False,
        temporary=True,
        retry_after=60,
        remedy="Check the package name, the version, and the network connection. "
        "Then test the connection again.",
    )


def build_timeout_error(endpoint: ServerEndpoint, method: str, seconds: float) -> UpstreamError:
    """Return the error of a sent request that exceeded its deadline."""
    return UpstreamError(
        format_message(
            "`{endpoint}` didn't respond to `{method}` within {seconds:g} s.",
            endpoint=endpoint.name,
            method=method,
            seconds=seconds,
        ),
        code="call_timeout",
        server=endpoint.name,
        temporary=True,
        sent=True,
        remedy="Try again, or increase its timeout. The server itself is still in use.",
    )


def build_reauth_error(endpoint: ServerEndpoint, http_status: int, challenge: str) -> UpstreamError:
    """Return the error of a server that rejects our credentials (401, 403)."""
    return UpstreamError(
        format_message(
            "`{endpoint}` rejected the credentials (HTTP {http_status}).",
            endpoint=endpoint.name,
            http_status=http_status,
        ),
        code="needs_reauth",
        server=endpoint.name,
        sent=False,
        http_status=http_status,
        remedy="Enter valid credentials for this server, or sign in to it again.",
        extra={"challenge": _mask_challenge(endpoint, challenge)} if challenge else None,
    )


def build_header_error(endpoint: ServerEndpoint) -> UpstreamError:
    """Return the error of headers that can't be sent, without quoting them."""
    return build_unreachable_error(
        endpoint,
        "its headers can't be sent",
        remedy="Check the names and values of the headers: ASCII only, no line breaks.",
    )


def build_crash_error(endpoint: ServerEndpoint, crash_reason: str, stderr: str) -> UpstreamError:
    """Return the error of a child process that ended; `stderr` is its last output."""
    quoted_output = quote_text(endpoint, _find_cause(mask_text(stderr, endpoint.secrets)))
    hidden_path = _find_hidden_path(endpoint, stderr)
    summary = format_message("`{endpoint}` ended: {how}.", endpoint=endpoint.name, how=crash_reason)
    detail = (
        format_message(
            "`{endpoint}` ended: {how}. Last error output: “{output}”.",
            endpoint=endpoint.name,
            how=crash_reason,
            output=quoted_output,
        )
        if quoted_output
        else summary
    )
    return UpstreamError(
        detail,
        code="server_crashed",
        server=endpoint.name,
        sent=True,
        remedy=_explain_missing_path(hidden_path)
        if hidden_path
        else "Check its command, arguments, and environment. See its error output for details.",
        summary=summary,
    )


def _explain_missing_path(path: str) -> TranslatableMessage:
    visible_path = make_visible(path, 200)
    if Path(path).exists():
        return format_message(
            "Its sandbox hides `{path}`. Set its folder to a folder that contains it.",
            path=visible_path,
        )
    return format_message(
        "`{path}` doesn't exist on this host. Correct its arguments.", path=visible_path
    )


def _find_cause(output: str) -> str:
    """Return the last line of an output that can be the cause, at most `MAX_CAUSE_LENGTH` long.

    Programs report their cause last: the lines before it are a stack trace. The end of a longer
    line is kept.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines if not _CLOSING_LINE.match(line)] or lines
    cause = causes[-1] if causes else ""
    if len(cause) <= MAX_CAUSE_LENGTH:
        return cause
    tail = cause[-MAX_CAUSE_LENGTH:]
    return f"… {tail.partition(' ')[2] or tail}"


def _find_hidden_path(endpoint: ServerEndpoint, output: str) -> str:
    """Return a path of the arguments that the child didn't find in its sandbox, or ""."""
    if endpoint.sandbox is None:
        return ""
    shown_folders = (*endpoint.sandbox.folders, *filter(None, (endpoint.cwd,)))
    missing = "\n".join(line for line in output.splitlines() if _MISSING_PATH.search(line))
    for argument in endpoint.args:
        is_missing = argument.startswith("/") and len(argument) > 1 and argument in missing
        if is_missing and not any(Path(argument).is_relative_to(path) for path in shown_folders):
            return argument
    return ""


def build_protocol_error(
    endpoint: ServerEndpoint,
    reason: str,
    *,
    remedy: str = "",
    answered: bool = False,
    quotes_server: bool = False,
) -> UpstreamError:
    """Return the error of a server that violates the protocol.

    `quotes_server` says that `reason` contains output of the server.
    """
    summary = format_message("`{endpoint}` violated the protocol.", endpoint=endpoint.name)
    return UpstreamError(
        format_message(
            "`{endpoint}` violated the protocol: {why}.",
            endpoint=endpoint.name,
            why=_strip_period(reason),
        ),
        code="protocol_error",
        server=endpoint.name,
        remedy=remedy or "Check that the endpoint is an MCP server, and check its version.",
        answered=answered,
        summary=summary if quotes_server else "",
    )


def build_too_large_error(endpoint: ServerEndpoint, limit: int) -> UpstreamError:
    """Return the error of a response longer than `limit` bytes."""
    return UpstreamError(
        format_message(
            "`{endpoint}` returned more than {limit:,} bytes. `BONOBOT_MAX_BODY` sets this limit.",
            endpoint=endpoint.name,
            limit=limit,
        ),
        code="response_too_large",
        server=endpoint.name,
        remedy="Request less at a time, for example with a filter or a smaller page size.",
    )


def build_rpc_error(
    endpoint: ServerEndpoint, error: object, http_status: int | None = None
) -> UpstreamError:
    """Return the error for a JSON-RPC error object, which may be malformed."""
    fields: Mapping[str, Any] = error if isinstance(error, dict) else {}
    code, message = fields.get("code"), fields.get("message")
    text = (
        quote_text(endpoint, message) if isinstance(message, str) else format_message("no message")
    )
    number = code if isinstance(code, int) and not isinstance(code, bool) else None
    detail = (
        format_message(
            "`{endpoint}` returned an error: {text} ({number})",
            endpoint=endpoint.name,
            text=text,
            number=number,
        )
        if number is not None
        else format_message(
            "`{endpoint}` returned an error: {text}", endpoint=endpoint.name, text=text
        )
    )
    return UpstreamError(
        detail,
        code="upstream_error",
        server=endpoint.name,
        rpc_code=number,
        rpc_message=text,
        rpc_data=fields.get("data"),
        http_status=http_status,
    )


def build_egress_error(
    endpoint: ServerEndpoint, refusal: EgressDenied, *, sent: bool
) -> UpstreamError:
    """Return a denial by the egress rules as an upstream error, with its code and remedy."""
    if refusal.code == "response_too_large":
        return build_too_large_error(endpoint, refusal.extra["limit"])
    code = "protocol_error" if refusal.code == "encoding_rejected" else refusal.code
    return UpstreamError(
        format_message(
            "`{endpoint}` can't be used: {why}", endpoint=endpoint.name, why=refusal.detail
        ),
        code=code,
        server=endpoint.name,
        sent=sent,
        remedy=refusal.remedy,
        field=refusal.field,
        extra=refusal.extra,
    )


def _build_start_refusal(
    endpoint: ServerEndpoint, reason: str, *, code: str, remedy: str, field: str
) -> UpstreamError:
    """Return the error of a server that wasn't started; `reason` is the end of a sentence."""
    return UpstreamError(
        format_message("`{endpoint}` wasn't started: {why}.", endpoint=endpoint.name, why=reason),
        code=code,
        server=endpoint.name,
        sent=False,
        remedy=remedy,
        field=field,
    )


def _strip_period(reason: str) -> str:
    """Return a reason as the end of a sentence; our own messages have no period."""
    return reason if isinstance(reason, TranslatableMessage) else reason.rstrip(". ")


def _mask_challenge(endpoint: ServerEndpoint, challenge: str) -> str:
    # Programs parse it (it names where to sign in), so only known secrets are masked.
    for secret in endpoint.secrets:
        if len(secret) >= MIN_SECRET_LENGTH:
            challenge = challenge.replace(secret, MASK)
    return make_visible(challenge, MAX_CHALLENGE_LENGTH)


def _build_blank_error(kind: type[UpstreamError], args: tuple[Any, ...]) -> UpstreamError:
    error = kind.__new__(kind)
    error.args = args
    return error
