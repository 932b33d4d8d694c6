"""An organization with channels whose receivers are there."""

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.notifications.models import NotificationChannel
from bonobot.notifications.services import NotificationChannelSpec, save_channel
from tests import factories
from tests.bonobot.notifications.receivers import Hook, Mailbox, hook_listening, mail_listening


@pytest.fixture
def acme(db: None) -> Organization:
    return factories.create_organization()


@pytest.fixture
def boss(acme: Organization) -> Principal:
    return factories.build_administrator(acme)


@pytest.fixture
def hook() -> Iterator[Hook]:
    with hook_listening() as listening:
        yield listening


@pytest.fixture
def mailbox(settings: Settings) -> Iterator[Mailbox]:
    with mail_listening() as listening:
        settings.BONOBOT_EMAIL_URL = f"smtp://127.0.0.1:{listening.port}"
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", listening.port
        yield listening


@pytest.fixture
def webhook(boss: Principal, hook: Hook) -> NotificationChannel:
    spec = NotificationChannelSpec(
        "Pager", "webhook", url=hook.url, secret="0123456789abcdef", allow_private=True
    )
    return save_channel(boss, spec)[0]


@pytest.fixture
def by_mail(boss: Principal, mailbox: Mailbox) -> NotificationChannel:
    spec = NotificationChannelSpec(
        "Operations", "email", addresses=["ops@example.com", "cto@example.com"]
    )
    return save_channel(boss, spec)[0]
