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


@dataclass(frozen=True, slots=True)
class ConnectionFailure:
    """The reason, as the end of a sentence, and the remedy."""

    reason: str
    remedy: str


REFUSED = ConnectionFailure(
    format_message("nothing listens at that host and port"),
    format_message("Start the server there, or correct host and port of its address."),
)
UNKNOWN_HOST = ConnectionFailure(
    format_message("its host name is not known"),
    format_message("Check how the name is written, and that this machine's name service knows it."),
)
UNREACHABLE = ConnectionFailure(
    format_message("no way leads to that host"),
    format_message("Check the address, and this machine's network."),
)
TIMED_OUT = ConnectionFailure(
    format_message("nothing answered in time"),
    format_message(
        "Check host and port, then try again. A firewall may swallow what is sent there."
    ),
)
DISCONNECTED = ConnectionFailure(
    format_message("the connection was cut"),
    format_message("Try again. If it stays so, the server's own log says why it hangs up."),
)
NO_TLS = ConnectionFailure(
    format_message("it does not speak TLS as it should"),
    format_message("Check the port, and whether the address should begin with http:// instead."),
)
NO_HTTP = ConnectionFailure(
    format_message("it doesn't answer in HTTP"),
    format_message("Check the port, and whether the address should begin with https:// instead."),
)
UNTRUSTED_REMEDY = format_message(
    "Have the certificate renewed or issued for this name, by an authority that is trusted."
)


def build_connection_error(kind: type[E], cause: Exception, message: str = "") -> E:
    """Return an error that carries its failure, because connection pools drop `__cause__`."""
    failure = find_failure(cause)
    error = kind(message or explain_error(cause))
    vars(error)["failure"] = replace(failure, reason=message) if failure and message else failure
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
                format_message("its TLS certificate is not trusted: {said}", said=verify_message),
                UNTRUSTED_REMEDY,
            )
        case ssl.SSLError():
            return NO_TLS
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
