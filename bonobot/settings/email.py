"""Parse the mail server's URL."""

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.validators import validate_email

from bonobot.core import environment

DEFAULT_PORTS = {"smtp": 25, "smtp+tls": 587, "smtps": 465}


@dataclass(frozen=True)
class MailServer:
    """An SMTP server; a blank host means that no email is sent."""

    host: str = ""
    port: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    starttls: bool = False
    tls: bool = False


def parse_mail_server(name: str, url: str) -> MailServer:
    """Return the server of a URL; raises ImproperlyConfigured with the variable's name."""
    if not url:
        return MailServer()
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        raise _build_url_error(name) from None
    remainder = (parts.path.rstrip("/"), parts.query, parts.fragment)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or any(remainder):
        raise _build_url_error(name)
    return MailServer(
        host=parts.hostname,
        port=port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        starttls=parts.scheme == "smtp+tls",
        tls=parts.scheme == "smtps",
    )


def read_sender_address(name: str, default: str) -> str:
    """Return a variable as an email address; raises ImproperlyConfigured if it isn't one."""
    value = environment.read_text(name, default)
    try:
        validate_email(value)
    except ValidationError:
        raise ImproperlyConfigured(
            f"`{name}` must be an address like `bonobot@example.com`, not {value!r}."
        ) from None
    return value


def _build_url_error(name: str) -> ImproperlyConfigured:
    # The value contains a password, so it isn't shown.
    return ImproperlyConfigured(
        f"`{name}` must be like `smtp+tls://user:password@host:587`, `smtps://…` or `smtp://…`."
    )
