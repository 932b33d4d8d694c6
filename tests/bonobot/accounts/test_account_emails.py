"""The outbox of emails to people, with a mail server that listens and one that doesn't."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from agents import doctor_checks
from bonobot.accounts import tasks
from bonobot.accounts.account_emails import (
    ACCOUNT_DELAYS_MIN,
    LINK_DELAYS_MIN,
    RETENTION,
    announce_change,
    queue_email,
    send_due_emails,
)
from bonobot.accounts.models import AccountEmail, Organization, User
from bonobot.accounts.password_reset import announce_reset, queue_reset_emails
from bonobot.accounts.roles import Role
from bonobot.accounts.second_factor import reset_second_factor
from tests import admin_client, factories
from tests.bonobot.notifications.receivers import Mailbox, run_mail_server

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def anna(acme: Organization) -> User:
    user = User.objects.get(pk=factories.create_member(acme, Role.OWNER, "anna").id)
    User.objects.filter(pk=user.pk).update(email="anna@example.com")
    return User.objects.get(pk=user.pk)


@pytest.fixture
def mailbox(settings: Any) -> Iterator[Mailbox]:
    with run_mail_server() as receiver:
        settings.BONOBOT_EMAIL_URL = f"smtp://127.0.0.1:{receiver.port}"
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", receiver.port
        yield receiver


def set_due() -> None:
    AccountEmail.objects.exclude(next_attempt_at=None).update(next_attempt_at=timezone.now())


EMAILS = {
    "a change of the sign-in": lambda anna: announce_change(anna, "totp_removed"),
    "the link to review an account": announce_reset,
    "a reset second factor": lambda anna: reset_second_factor(
        factories.build_administrator(anna.memberships.get().organization), anna
    ),
    "a link for a new password": lambda anna: queue_reset_emails([anna.pk]),
}


@pytest.mark.parametrize("queue", EMAILS.values(), ids=EMAILS)
def test_an_email_is_sent_later_when_the_mail_server_was_down(
    anna: User, mailbox: Mailbox, settings: Any, queue: Any
) -> None:
    port, settings.EMAIL_PORT = settings.EMAIL_PORT, 9  # nothing listens there
    queue(anna)
    assert tasks.send_due_account_emails() == 1
    row = AccountEmail.objects.get()
    assert (row.attempts, row.next_attempt_at > timezone.now()) == (1, True)
    assert "ConnectionRefusedError" in row.error
    assert send_due_emails() == 0  # not yet
    settings.EMAIL_PORT = port
    set_due()
    assert send_due_emails() == 1
    [(addresses, message)] = mailbox.received
    assert addresses == ["anna@example.com"]
    assert message["Message-ID"] == f"<{row.pk}@bonobot>"
    assert not AccountEmail.objects.exists()


@pytest.mark.parametrize("queue", EMAILS.values(), ids=EMAILS)
def test_the_queue_has_no_link_or_text(anna: User, mailbox: Mailbox, queue: Any) -> None:
    queue(anna)
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM tenancy_accountemail")
        row = " ".join(map(str, cursor.fetchone()))
    assert "http" not in row
    assert "/account/" not in row
    send_due_emails()
    assert len(mailbox.received) == 1


def test_an_email_of_a_rolled_back_change_isnt_queued(anna: User, mailbox: Mailbox) -> None:
    with transaction.atomic():
        announce_change(anna, "totp_removed")
        transaction.set_rollback(True)
    assert not AccountEmail.objects.exists()


@pytest.mark.parametrize(
    ("queue", "delays"),
    [
        (lambda anna: announce_change(anna, "totp_removed"), ACCOUNT_DELAYS_MIN),
        (lambda anna: queue_reset_emails([anna.pk]), LINK_DELAYS_MIN),
    ],
)
def test_a_refused_email_finally_fails_and_is_shown(
    anna: User, acme: Organization, mailbox: Mailbox, queue: Any, delays: Any
) -> None:
    mailbox.refuses = True
    queue(anna)
    waits = []
    while AccountEmail.objects.due().exists():
        start = timezone.now()
        send_due_emails()
        row = AccountEmail.objects.get()
        waits.append(row.next_attempt_at and round((row.next_attempt_at - start).seconds / 60))
        set_due()
    assert waits[-1] is None
    assert len(waits) == len(delays) + 1
    [finding] = doctor_checks.inspect_account_emails()
    assert (finding.state, "1 of them finally" in finding.detail) == ("warning", True)
    anna.is_superuser = anna.is_staff = True
    anna.save()
    admin = admin_client.AdminClient(anna)
    page = admin_client.get_text(admin.get("index"))
    assert "1 undelivered email about an account" in page
    AccountEmail.objects.update(created_at=timezone.now() - RETENTION - timedelta(minutes=1))
    send_due_emails()
    assert not AccountEmail.objects.exists()
    [finding] = doctor_checks.inspect_account_emails()
    assert finding.state == "ok"


def test_an_owner_doesnt_see_undelivered_emails_of_other_organizations(
    anna: User, acme: Organization, mailbox: Mailbox
) -> None:
    mailbox.refuses = True
    announce_change(anna, "totp_removed")
    send_due_emails()
    page = admin_client.get_text(admin_client.AdminClient(anna).get("index"))
    assert "undelivered email" not in page


def test_a_claim_of_a_dead_process_is_due_again(anna: User, mailbox: Mailbox) -> None:
    announce_change(anna, "totp_removed")
    row = AccountEmail.objects.get()
    AccountEmail.objects.update(next_attempt_at=timezone.now() + timedelta(minutes=5), attempts=1)
    assert send_due_emails() == 0
    AccountEmail.objects.update(next_attempt_at=timezone.now())
    assert send_due_emails() == 1
    assert mailbox.received[0][1]["Message-ID"] == f"<{row.pk}@bonobot>"


def test_links_go_to_the_address_that_the_account_has_when_they_are_sent(
    anna: User, mailbox: Mailbox
) -> None:
    queue_reset_emails([anna.pk])
    announce_reset(anna)
    User.objects.filter(pk=anna.pk).update(email="new@example.com")
    send_due_emails()
    assert [addresses for addresses, _ in mailbox.received] == [["new@example.com"]] * 2


@pytest.mark.parametrize("queue", [EMAILS["the link to review an account"], queue_reset_emails])
def test_a_disabled_account_gets_no_link(anna: User, mailbox: Mailbox, queue: Any) -> None:
    queue(anna if queue is not queue_reset_emails else [anna.pk])
    User.objects.filter(pk=anna.pk).update(is_active=False)
    send_due_emails()
    assert mailbox.received == []
    assert not AccountEmail.objects.exists()


def test_nothing_is_queued_when_no_mail_can_be_sent(anna: User, settings: Any) -> None:
    settings.BONOBOT_EMAIL_URL = ""
    queue_email(anna, "reset_review")
    assert not AccountEmail.objects.exists()
