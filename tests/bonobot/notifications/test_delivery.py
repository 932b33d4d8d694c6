"""Delivery to receivers that listen on real sockets."""

import hmac
import threading

import pytest
from django.utils import translation

from bonobot.accounts.models import User
from bonobot.core.crypto.encrypted_fields import UnreadableSecret
from bonobot.core.http import egress
from bonobot.core.i18n.localization import localize_text
from bonobot.notifications import delivery, webhooks
from bonobot.notifications.delivery import send_due_notifications, send_test_notification
from bonobot.notifications.models import Notification, NotificationChannel
from bonobot.notifications.notify import NotificationSubject, notify
from bonobot.notifications.tasks import send_due_notifications as task

WEB = NotificationSubject("mcp_server", "1", "web", "/admin/mcp_servers/")


def notify_outage(acme, text="It is away.", subject=WEB):
    notify(acme.pk, "server_down", subject, text, topic="outage:1")
    return Notification.objects.get()


def test_each_kind_of_channel_can_be_sent():
    kinds = {kind.value for kind in NotificationChannel.Kind}
    assert {"email", *delivery.REQUEST_BUILDERS} == kinds, "add it to `REQUEST_BUILDERS`"


def test_a_webhook_receives_signed_json_once(acme, webhook, hook):
    notification = notify_outage(acme)
    assert task() == 1
    assert task() == 0
    [(headers, body)] = hook.received
    assert hook.last["subject"] == {"type": "mcp_server", "id": "1", "name": "web"}
    assert hook.last["url"].endswith("/admin/mcp_servers/")
    assert headers["Idempotency-Key"] == hook.last["id"] == str(notification.pk)
    signed = headers["Bonobot-Timestamp"].encode() + b"." + body
    expected = hmac.new(b"0123456789abcdef", signed, "sha256").hexdigest()
    assert headers["Bonobot-Signature"] == f"v1={expected}"
    notification.refresh_from_db()
    assert (notification.state, notification.attempts) == (Notification.State.SENT, 1)


@pytest.mark.parametrize(
    ("status", "error"),
    [(500, "answered 500: down"), (404, "answered 404"), (302, "redirect_denied")],
)
def test_a_refused_notification_is_kept_and_retried(acme, webhook, hook, status, error):
    hook.status, hook.body = status, b"down \x1b[31m" + b"x" * 5_000
    hook.headers = {"Location": "http://169.254.169.254/"} if status == 302 else {}
    notification = notify_outage(acme)
    send_due_notifications()
    notification.refresh_from_db()
    assert error in notification.error
    assert "geheimer-pfad" not in notification.error
    assert "\x1b" not in notification.error
    assert (notification.state, notification.attempts) == (Notification.State.WAITING, 1)
    hook.status = 200
    Notification.objects.update(next_attempt_at=notification.created_at)
    send_due_notifications()
    notification.refresh_from_db()
    assert (notification.state, notification.error) == (Notification.State.SENT, "")


def test_an_endless_response_isnt_read(acme, webhook, hook):
    hook.body = b"x" * (webhooks.MAX_RESPONSE_BYTES * 4)
    notification = notify_outage(acme)
    send_due_notifications()
    notification.refresh_from_db()
    assert "response_too_large" in notification.error


def test_a_private_address_needs_its_permission_at_each_delivery(acme, webhook, hook):
    NotificationChannel.objects.update(allow_private=False)
    notification = notify_outage(acme)
    send_due_notifications()
    notification.refresh_from_db()
    assert "private_address" in notification.error
    assert hook.received == []


def test_an_unreachable_receiver_is_reported_without_its_path(acme, webhook, hook, monkeypatch):
    async def refuse(*_args):
        raise OSError

    monkeypatch.setattr(egress, "resolve_host", refuse)
    notification = notify_outage(acme)
    send_due_notifications()
    notification.refresh_from_db()
    assert "can't be reached" in notification.error
    assert "geheimer-pfad" not in notification.error


def test_a_secret_that_cant_be_decrypted_fails_only_its_notification(
    acme, webhook, email_channel, mailbox
):
    NotificationChannel.objects.filter(pk=webhook.pk).update(origin="https://x")
    row = NotificationChannel.objects.get(pk=webhook.pk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(webhooks, "sign_body", fail_to_sign)
        notify(acme.pk, "server_down", WEB, "Away.", topic="outage:1")
        send_due_notifications()
    states = dict(Notification.objects.values_list("channel__name", "state"))
    assert states == {"Pager": "waiting", "Operations": "sent"}
    assert row.notices.get().error


def fail_to_sign(*_args):
    raise UnreadableSecret("No key opens it.")


def test_email_is_sent_to_every_address_as_plain_text(acme, email_channel, mailbox):
    notify_outage(acme)
    send_due_notifications()
    [(to, message)] = mailbox.received
    assert to == ["ops@example.com", "cto@example.com"]
    assert message["Subject"] == "[Bonobot] Server not responding: web"
    assert message.get_content_type() == "text/plain"
    assert "It is away." in message.get_content()
    assert "/admin/mcp_servers/" in message.get_content()
    assert Notification.objects.get().state == Notification.State.SENT


def test_a_servers_name_adds_no_header(acme, email_channel, mailbox):
    evil = "web\r\nBcc: everybody@example.com\r\n\r\nhello\u202e"
    notify_outage(acme, subject=NotificationSubject("mcp_server", "1", evil))
    send_due_notifications()
    [(to, message)] = mailbox.received
    assert to == ["ops@example.com", "cto@example.com"]
    assert message["Bcc"] is None
    assert "\u202e" not in str(message["Subject"])


def test_a_mail_server_that_refuses_or_is_unreachable_is_reported(
    acme, email_channel, mailbox, settings
):
    mailbox.refuses = True
    notification = notify_outage(acme)
    send_due_notifications()
    notification.refresh_from_db()
    assert "refused" in notification.error
    settings.EMAIL_PORT = 1
    Notification.objects.update(next_attempt_at=notification.created_at)
    send_due_notifications()
    notification.refresh_from_db()
    assert "doesn't answer" in notification.error


def test_without_a_mail_server_a_notification_fails_with_that_reason(acme, email_channel, settings):
    settings.BONOBOT_EMAIL_URL = ""
    notification = notify_outage(acme)
    send_due_notifications()
    notification.refresh_from_db()
    assert "BONOBOT_EMAIL_URL" in notification.error


def test_a_test_notification_is_sent_immediately_and_not_retried(administrator, webhook, hook):
    assert send_test_notification(administrator, webhook).state == Notification.State.SENT
    assert hook.last["event"] == "test"
    hook.status = 500
    assert send_test_notification(administrator, webhook).state == Notification.State.FAILED
    assert delivery.claim_due_notifications() == []


def test_receivers_dont_delay_each_other(acme, administrator, webhook, hook):
    gate = threading.Barrier(2, timeout=10)
    stored = NotificationChannel.objects.get(pk=webhook.pk)
    second = NotificationChannel(
        organization=acme, name="Second", kind="webhook", origin="x", allow_private=True
    )
    second.url, second.secret = stored.url.open(), "0123456789abcdef"
    second.save()

    class WaitingList(list):
        def append(self, item):
            gate.wait()
            super().append(item)

    hook.received = WaitingList()
    notify(acme.pk, "server_down", WEB, "Away.", topic="outage:1")
    send_due_notifications()
    assert len(hook.received) == 2


def test_each_recipient_gets_email_in_their_own_language(acme, email_channel, mailbox):
    User.objects.create_user("cto", email="cto@example.com", language="de")
    User.objects.create_user("gone", email="ops@example.com", language="de", is_active=False)
    text = "web hasn't responded since 2026-11-22 02:41 UTC (3 failed attempts). It is away."
    notify_outage(acme, text)
    send_due_notifications()
    messages = {to[0]: message for to, message in mailbox.received}
    assert messages["ops@example.com"]["Subject"] == "[Bonobot] Server not responding: web"
    assert text in messages["ops@example.com"].get_content()
    german = messages["cto@example.com"]
    assert german["Subject"] == "[Bonobot] Server antwortet nicht: web"
    assert (
        "web antwortet seit 2026-11-22 02:41 UTC nicht (3 fehlgeschlagene Versuche)."
        in german.get_content()
    )
    assert "kritisch (server_down)" in german.get_content()
    assert german["Message-ID"] == messages["ops@example.com"]["Message-ID"]
    assert Notification.objects.get().text == text


TRANSLATIONS = {
    "Anna sent a test to this channel. Your organization's notifications arrive here.": (
        "Anna hat einen Test an diesen Kanal gesendet. Benachrichtigungen deiner "
        "Organisation kommen hier an."
    ),
    "The budget of the agent Helper is exhausted: 1.50 of 1.25 dollars per day. Calls "
    "are denied until the next period or until the budget is raised.": (
        "Ein Budget (der Agent Helper) ist aufgebraucht: 1,50 von 1,25 Dollar pro Tag. "
        "Aufrufe werden abgelehnt, bis der nächste Zeitraum beginnt oder das Budget erhöht "
        "wird."
    ),
    "The agent Helper requests approval to call add (web), on behalf of anna. If there is no "
    "answer by 2026-11-22 02:41 UTC, the call is denied.": (
        "Der Agent Helper fordert im Auftrag von anna eine Genehmigung für den Aufruf von "
        "add (web) an. Ohne Antwort bis 2026-11-22 02:41 UTC wird der Aufruf abgelehnt."
    ),
    "web has new or changed definitions (2): add, sub. They can't be called until they are "
    "approved.": (
        "web hat neue oder geänderte Definitionen (2): add, sub. Sie können erst "
        "aufgerufen werden, wenn sie genehmigt sind."
    ),
    "web is responding again after 5 min (timeout).": "web antwortet nach 5 min wieder (timeout).",
}


@pytest.mark.parametrize("text", TRANSLATIONS)
def test_stored_notifications_are_translated_to_german(text):
    with translation.override("de"):
        assert localize_text(text) == TRANSLATIONS[text]
