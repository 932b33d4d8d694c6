"""Channels: permissions, validation, and secrets that are never shown."""

import pytest

from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.ledger.models import AuditRow
from bonobot.notifications.channels import NotificationChannelSpec, delete_channel, save_channel
from bonobot.notifications.models import NotificationChannel
from tests import factories

HOOK = "https://hooks.example.com/T0/B0/geheim"


@pytest.fixture
def owner(acme):
    return factories.create_member(acme, Role.OWNER)


def get_error(principal, **fields):
    spec = {"name": "Pager", "kind": "webhook", "url": HOOK} | fields
    with pytest.raises(Problem) as raised:
        save_channel(principal, NotificationChannelSpec(**spec))
    assert not NotificationChannel.objects.exists()
    return raised.value.code, raised.value.field


def test_an_owner_creates_a_channel_whose_secret_is_shown_once(owner):
    channel, secret = save_channel(owner, NotificationChannelSpec("Pager", "webhook", url=HOOK))
    assert len(secret) > 30
    assert channel.secret.open() == secret
    updated, new_secret = save_channel(
        owner, NotificationChannelSpec("Pager 2", "webhook"), channel
    )
    assert (updated.name, updated.url.open(), new_secret) == ("Pager 2", HOOK, "")


def test_secrets_of_a_webhook_arent_in_the_audit_log(owner):
    channel, secret = save_channel(owner, NotificationChannelSpec("Pager", "webhook", url=HOOK))
    delete_channel(owner, channel)
    rows = AuditRow.objects.filter(resource_type="notice_channel")
    assert {row.action for row in rows} == {
        "notification_channel_created",
        "notification_channel_deleted",
    }
    assert not any("geheim" in row.opened or secret in row.opened for row in rows)


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.REVIEWER, Role.AUDITOR, Role.MEMBER])
def test_other_roles_cant_create_channels(acme, role):
    assert get_error(factories.create_member(acme, role))[0] == "forbidden"


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"name": " "}, "invalid", "name"),
        ({"kind": "pigeon"}, "invalid", "kind"),
        ({"minimum_severity": "dire"}, "invalid", "minimum_severity"),
        ({"events": ["test"]}, "invalid", "events"),
        ({"url": ""}, "invalid", "url"),
        ({"url": "ftp://x.example.com"}, "bad_url", "url"),
        ({"url": "http://127.0.0.1/"}, "private_address", "url"),
        ({"url": "http://127.0.0.1/", "allow_private": True}, "forbidden", ""),
        ({"secret": "short"}, "invalid", "secret"),
        ({"kind": "email", "addresses": ["ops@example.com"]}, "email_not_configured", "kind"),
    ],
)
def test_invalid_values_are_refused_at_their_field(owner, fields, code, field):
    assert get_error(owner, **fields) == (code, field)


@pytest.mark.parametrize(
    "addresses", [[], ["nobody"], ["a@example.com\nBcc: b@example.com"], ["a@example.com"] * 21]
)
def test_invalid_email_addresses_are_refused(owner, settings, addresses):
    settings.BONOBOT_EMAIL_URL = "smtp://mail.example.com"
    assert get_error(owner, kind="email", addresses=addresses) == ("invalid", "addresses")


def test_a_duplicate_name_is_refused(owner):
    save_channel(owner, NotificationChannelSpec("Pager", "webhook", url=HOOK))
    with pytest.raises(Problem) as raised:
        save_channel(owner, NotificationChannelSpec("Pager", "webhook", url=HOOK))
    assert raised.value.code == "name_taken"


def test_a_channel_that_is_changed_to_email_loses_its_webhook(owner, settings):
    settings.BONOBOT_EMAIL_URL = "smtp://mail.example.com"
    channel, _ = save_channel(owner, NotificationChannelSpec("Pager", "webhook", url=HOOK))
    spec = NotificationChannelSpec("Pager", "email", addresses=["ops@example.com"])
    channel, _ = save_channel(owner, spec, channel)
    channel.refresh_from_db()
    assert (bool(channel.url), bool(channel.secret), channel.destination) == (
        False,
        False,
        "ops@example.com",
    )
