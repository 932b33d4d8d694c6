"""Readable reasons for failed connections.

System messages (`[Errno 111] Connect call failed`) don't say what to check; these do. The reason
follows from the root `OSError` (socket, DNS, TLS) or from a response that isn't HTTP.
"""

import errno
import socket
import ssl
from dataclasses import dataclass, replace
from typing import TypeVar

from bonobot.core.i18n.messages import format_message

E = TypeVar("E", bound=Exception)

NO_ROUTE_ERRNOS = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.ENETDOWN}
)
# How OpenSSL names a response that isn't TLS, by version.
NO_TLS_REASONS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
UNTRUSTED_REMEDY = format_message(
    "Renew the certificate, or get one for this host name from a trusted certificate authority."
)


@dataclass(frozen=True, slots=True)
class ConnectionFailure:
    """The reason, as the end of a sentence, and the remedy."""

    reason: str
    remedy: str


REFUSED = ConnectionFailure(
    format_message("the connection was refused"),
    format_message("Start the server, or correct the host and port in its URL."),
)
UNKNOWN_HOST = ConnectionFailure(
    format_message("the host name can't be resolved"),
    format_message("Correct the host name in the URL."),
)
NO_DNS = ConnectionFailure(
    format_message("DNS didn't answer"),
    format_message("Check the DNS configuration of this machine."),
)
UNREACHABLE = ConnectionFailure(
    format_message("there is no route to the host"),
    format_message("Check the URL and this machine's network."),
)
TIMED_OUT = ConnectionFailure(
    format_message("the connection timed out"),
    format_message(
        "Check the host and port, then try again. A firewall might be dropping the traffic."
    ),
)
SILENT = ConnectionFailure(
    format_message("it accepted the connection, but sent nothing in time"),
    format_message("Check the server's log, and whether the URL's port is that of an MCP server."),
)
DISCONNECTED = ConnectionFailure(
    format_message("the connection was interrupted"),
    format_message(
        "Try again. If the problem persists, check the server's log for why it closes the "
        "connection."
    ),
)
NO_TLS = ConnectionFailure(
    format_message("the server doesn't use TLS"),
    format_message("Start the URL with http:// instead of https://."),
)
TLS_FAILED = ConnectionFailure(
    format_message("the TLS connection failed"),
    format_message("Check the TLS configuration of the server."),
)
NO_HTTP = ConnectionFailure(
    format_message("the response isn't HTTP"),
    format_message("Check the port, and whether the URL should start with https:// instead."),
)


def build_connection_error(kind: type[E], cause: Exception, message: str = "") -> E:
    """Return an error that carries its failure, because connection pools drop `__cause__`."""
    failure = find_failure(cause)
    error = kind(message or explain_error(cause))
    vars(error)["failure"] = replace(failure, reason=message) if failure and message else failure
    return error


def build_silence_error(kind: type[E]) -> E:
    """Return the error of a peer that accepted the connection and then sent nothing in time."""
    error = kind(SILENT.reason)
    vars(error)["failure"] = SILENT
    return error


def build_not_http_error(kind: type[E]) -> E:
    """Return the error of a peer whose response isn't HTTP, or can be read in two ways."""
    error = kind(NO_HTTP.reason)
    vars(error)["failure"] = NO_HTTP
    return error


def find_failure(error: BaseException | None) -> ConnectionFailure | None:
    """Return why a connection failed, following an error's causes; None if unknown.

    Only `__cause__` is followed: `__context__` may belong to another request.
    """
    while error is not None:
        attached_failure: ConnectionFailure | None = vars(error).get("failure")
        if (failure := attached_failure or _classify_error(error)) is not None:
            return failure
        error = error.__cause__
    return None


def explain_error(error: BaseException) -> str:
    """Return the known reason of an error, or else its message."""
    failure = find_failure(error)
    return failure.reason if failure else str(error)


def _classify_error(error: BaseException) -> ConnectionFailure | None:
    match error:
        case ssl.SSLCertVerificationError():
            verify_message = str(error.verify_message or "it can't be verified").rstrip(".")
            return ConnectionFailure(
                format_message("the TLS certificate isn't trusted: {error}", error=verify_message),
                UNTRUSTED_REMEDY,
            )
        case ssl.SSLError():
            reason = getattr(error, "reason", "")  # only on errors of OpenSSL
            return NO_TLS if reason in NO_TLS_REASONS else TLS_FAILED
        case socket.gaierror() if error.errno == socket.EAI_AGAIN:
            return NO_DNS
        case socket.gaierror() | UnicodeError():
            return UNKNOWN_HOST
        case TimeoutError():
            return TIMED_OUT
        case ConnectionRefusedError():
            return REFUSED
        case ConnectionError() if error.errno is not None:  # our own errors have no errno
            return DISCONNECTED
        case OSError() if error.errno in NO_ROUTE_ERRNOS:
            return UNREACHABLE
    # httpcore2 and httpx2 both have this class: compare by name. Its message quotes raw bytes.
    if type(error).__name__ == "RemoteProtocolError" and "illegal" in str(error):
        return NO_HTTP
    return None
