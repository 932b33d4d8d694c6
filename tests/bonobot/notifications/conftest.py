"""An organization with notification channels and running receivers."""

from collections.abc import Iterator

import pytest
from pytest_django import Settings

from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.notifications.channels import NotificationChannelSpec, save_channel
from bonobot.notifications.models import NotificationChannel
from tests import factories
from tests.bonobot.notifications.receivers import (
    Hook,
    Mailbox,
    run_mail_server,
    run_webhook_receiver,
)


@pytest.fixture
def acme(db: None) -> Organization:
    return factories.create_organization()


@pytest.fixture
def administrator(acme: Organization) -> Principal:
    return factories.build_administrator(acme)


@pytest.fixture
def hook() -> Iterator[Hook]:
    with run_webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
def mailbox(settings: Settings) -> Iterator[Mailbox]:
    with run_mail_server() as receiver:
        settings.BONOBOT_EMAIL_URL = f"smtp://127.0.0.1:{receiver.port}"
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", receiver.port
        yield receiver


@pytest.fixture
def webhook(administrator: Principal, hook: Hook) -> NotificationChannel:
    spec = NotificationChannelSpec(
        "Pager", "webhook", url=hook.url, secret="0123456789abcdef", allow_private=True
    )
    return save_channel(administrator, spec)[0]


@pytest.fixture
def email_channel(administrator: Principal, mailbox: Mailbox) -> NotificationChannel:
    spec = NotificationChannelSpec(
        "Operations", "email", addresses=["ops@example.com", "cto@example.com"]
    )
    return save_channel(administrator, spec)[0]
