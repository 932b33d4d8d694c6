"""Failures: why a connection could not be made, or broke off, in words that say what to do.

The system's own words (`[Errno 111] Connect call failed`) name numbers; these name the place to
look at. They are known by the `OSError` at the root, of a socket, a name or TLS, or by an answer
that isn't HTTP.
"""

import errno
import socket
import ssl
from dataclasses import dataclass, replace
from typing import TypeVar

from bonobot.lib.sayings import say

E = TypeVar("E", bound=Exception)

NO_ROUTE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.ENETDOWN})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why, as the end of a sentence, and what to do next."""

    why: str
    remedy: str


REFUSED = Failure(
    say("nothing listens at that host and port"),
    say("Start the server there, or correct host and port of its address."),
)
UNKNOWN_NAME = Failure(
    say("its host name is not known"),
    say("Check how the name is written, and that this machine's name service knows it."),
)
NO_WAY = Failure(
    say("no way leads to that host"),
    say("Check the address, and this machine's network."),
)
SILENT = Failure(
    say("nothing answered in time"),
    say("Check host and port, then try again. A firewall may swallow what is sent there."),
)
BROKEN = Failure(
    say("the connection was cut"),
    say("Try again. If it stays so, the server's own log says why it hangs up."),
)
NO_TLS = Failure(
    say("it does not speak TLS as it should"),
    say("Check the port, and whether the address should begin with http:// instead."),
)
NO_HTTP = Failure(
    say("it doesn't answer in HTTP"),
    say("Check the port, and whether the address should begin with https:// instead."),
)
UNTRUSTED = say(
    "Have the certificate renewed or issued for this name, by an authority that is trusted."
)


def failed(kind: type[E], cause: Exception, words: str = "") -> E:
    """Return an error that knows why: pools of connections forget what it was raised from."""
    known = failure_of(cause)
    error = kind(words or why(cause))
    vars(error)["failure"] = replace(known, why=words) if known and words else known
    return error


def failure_of(error: BaseException | None) -> Failure | None:
    """Return why a connection failed, by what an error was raised from; None where it isn't known.

    Only `__cause__` is followed: `__context__` may be another request's.
    """
    while error is not None:
        known: Failure | None = vars(error).get("failure")
        if (found := known or _told(error)) is not None:
            return found
        error = error.__cause__
    return None


def why(error: BaseException) -> str:
    """Return why, in our words where there are some, else in the error's own."""
    found = failure_of(error)
    return found.why if found else str(error)


def _told(error: BaseException) -> Failure | None:
    match error:
        case ssl.SSLCertVerificationError():
            said = str(error.verify_message or "it can't be verified").rstrip(".")
            return Failure(say("its TLS certificate is not trusted: {said}", said=said), UNTRUSTED)
        case ssl.SSLError():
            return NO_TLS
        case socket.gaierror() | UnicodeError():
            return UNKNOWN_NAME
        case TimeoutError():
            return SILENT
        case ConnectionRefusedError():
            return REFUSED
        case ConnectionError() if error.errno is not None:  # ours have words of their own
            return BROKEN
        case OSError() if error.errno in NO_ROUTE:
            return NO_WAY
    # Clients are made by `egress` alone, so their errors are known by name. Its words quote bytes.
    if type(error).__name__ == "RemoteProtocolError" and "illegal" in str(error):
        return NO_HTTP
    return None
