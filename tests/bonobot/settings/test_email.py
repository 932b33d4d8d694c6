"""The variable of the mail server."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from bonobot.settings.email import MailServer, parse_mail_server, read_sender_address


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", MailServer()),
        ("smtp://mail", MailServer("mail", 25)),
        ("smtps://u@mail:1465/", MailServer("mail", 1465, "u", tls=True)),
        (
            "smtp+tls://me%40x:p%2Fw@mail",
            MailServer("mail", 587, "me@x", "p/w", starttls=True),
        ),
    ],
)
def test_an_email_url_configures_everything(url: str, expected: MailServer) -> None:
    assert parse_mail_server("X", url) == expected


@pytest.mark.parametrize("url", ["mail", "http://mail", "smtp://", "smtp://mail:x", "smtp://m/p"])
def test_an_invalid_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="`X` must be like `smtp") as raised:
        parse_mail_server("X", url)
    assert url not in str(raised.value).replace("smtp://…", "")


def test_the_sender_must_be_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_sender_address("BONOBOT_EMAIL_FROM", "a@localhost") == "a@localhost"
    monkeypatch.setenv("BONOBOT_EMAIL_FROM", "Bonobot")
    with pytest.raises(ImproperlyConfigured, match="BONOBOT_EMAIL_FROM"):
        read_sender_address("BONOBOT_EMAIL_FROM", "a@localhost")
