"""Create, update and delete notification channels."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.secret_addresses import check_kept_secrets
from bonobot.core.http.egress import check_url
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.masking import MASK
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.notifications import delivery
from bonobot.notifications.events import SELECTABLE_EVENTS, Severity
from bonobot.notifications.models import NotificationChannel

MAX_ADDRESSES = 20
MIN_SECRET_LENGTH = 16


@dataclass(frozen=True)
class NotificationChannelSpec:
    """The input of a channel. A blank or masked `url` or `secret` keeps the stored value."""

    name: str
    kind: str
    addresses: Sequence[str] = ()
    url: str = ""
    secret: str = ""
    allow_private: bool = False
    events: Sequence[str] = ()
    minimum_severity: str = Severity.INFO.word
    enabled: bool = True


def build_spec(channel: NotificationChannel) -> NotificationChannelSpec:
    """Return the stored values of a channel, with a blank `url` and `secret`."""
    names = {spec_field.name for spec_field in fields(NotificationChannelSpec)} - {"url", "secret"}
    return NotificationChannelSpec(**{name: getattr(channel, name) for name in names})


def save_channel(
    principal: Principal, spec: NotificationChannelSpec, channel: NotificationChannel | None = None
) -> tuple[NotificationChannel, str]:
    """Create or update a channel; return it and the signing secret if one was generated.

    Raises `Forbidden`, `InvalidInput` and `EgressDenied` with the field, `Conflict` (`name_taken`).
    """
    principal.require(Action.MANAGE_NOTICES)
    is_new = channel is None
    row = channel or NotificationChannel(organization_id=principal.organization_id)
    _check_spec(principal, spec, row)
    generated_secret = _apply_spec(row, spec)
    with record_change(
        **describe_row("notice_channel", row),
        actor=principal.actor,
        action="notification_channel_created" if is_new else "notification_channel_updated",
        details={"kind": row.kind, "destination": row.destination, "enabled": row.enabled},
        governed=False,
    ):
        _save_row(row)
        if not row.enabled:
            delivery.cancel_waiting_notifications(row)
    return row, generated_secret


def delete_channel(principal: Principal, channel: NotificationChannel) -> None:
    """Delete a channel with its notifications; the audit log keeps its name."""
    principal.require(Action.MANAGE_NOTICES)
    with record_change(
        **describe_row("notice_channel", channel),
        actor=principal.actor,
        action="notification_channel_deleted",
        governed=False,
    ):
        channel.delete()


def _check_spec(
    principal: Principal, spec: NotificationChannelSpec, row: NotificationChannel
) -> None:
    if not spec.name.strip():
        raise InvalidInput(
            "A channel needs a name.", field="name", remedy="Enter who receives the notifications."
        )
    if spec.kind not in NotificationChannel.Kind.values:
        raise _build_unknown_value_error("kind", spec.kind, NotificationChannel.Kind.values)
    if spec.minimum_severity not in (severities := [severity.word for severity in Severity]):
        raise _build_unknown_value_error("minimum_severity", spec.minimum_severity, severities)
    if unknown := [event for event in spec.events if event not in SELECTABLE_EVENTS]:
        raise _build_unknown_value_error("events", unknown[0], SELECTABLE_EVENTS)
    if spec.kind == NotificationChannel.Kind.EMAIL:
        _check_addresses(spec.addresses)
    else:
        _check_webhook(principal, spec, row)


def _check_addresses(addresses: Sequence[str]) -> None:
    if not settings.BONOBOT_EMAIL_URL:
        raise InvalidInput(
            "Email isn't configured for this installation.",
            code="email_not_configured",
            field="kind",
            remedy="Ask a platform administrator to set `BONOBOT_EMAIL_URL`, or use a webhook.",
        )
    if not 1 <= len(addresses) <= MAX_ADDRESSES:
        raise InvalidInput(
            format_message("There are {count} addresses.", count=len(addresses)),
            field="addresses",
            remedy=format_message(
                "Enter 1 to {most_addresses} addresses. A mailing list counts as one.",
                most_addresses=MAX_ADDRESSES,
            ),
        )
    for address in addresses:
        try:
            validate_email(address)
        except ValidationError:
            raise InvalidInput(
                format_message("{address!r} isn't a valid email address.", address=address[:100]),
                field="addresses",
                remedy="Enter only the email address, such as ops@example.com.",
            ) from None


def _check_webhook(
    principal: Principal, spec: NotificationChannelSpec, row: NotificationChannel
) -> None:
    if spec.allow_private and not row.allow_private:
        principal.require(Action.ALLOW_PRIVATE_ADDRESS)
    url = spec.url if _is_new_value(spec.url) else row.url.open() if row.url else ""
    if not url:
        raise InvalidInput(
            "A webhook needs a URL.", field="url", remedy="Enter a URL such as https://…."
        )
    check_url(url, allow_private=spec.allow_private)
    if row.url and row.secret and not _is_new_value(spec.secret):
        check_kept_secrets(["secret"], {"url": row.url.open()}, {"url": url})
    if _is_new_value(spec.secret) and len(spec.secret) < MIN_SECRET_LENGTH:
        raise InvalidInput(
            "The signing secret is too short.",
            field="secret",
            remedy=format_message(
                "Use at least {shortest_secret} characters, or leave it empty to generate one.",
                shortest_secret=MIN_SECRET_LENGTH,
            ),
        )


def _apply_spec(row: NotificationChannel, spec: NotificationChannelSpec) -> str:
    """Apply the spec to the row; return the generated secret, if any."""
    row.name, row.kind = spec.name.strip(), spec.kind
    row.events = [event for event in SELECTABLE_EVENTS if event in spec.events]
    row.minimum_severity, row.enabled = spec.minimum_severity, spec.enabled
    values: dict[str, Any]
    if spec.kind == NotificationChannel.Kind.EMAIL:
        values = {"url": "", "origin": "", "secret": "", "allow_private": False}
        row.addresses = list(dict.fromkeys(spec.addresses))
        generated_secret = ""
    else:
        row.addresses = []
        generated_secret = (
            "" if _is_new_value(spec.secret) or row.secret else secrets.token_urlsafe(32)
        )
        values = {"allow_private": spec.allow_private}
        if _is_new_value(spec.url):
            values |= {"url": spec.url, "origin": _extract_origin(spec.url)}
        if generated_secret or _is_new_value(spec.secret):
            values["secret"] = generated_secret or spec.secret
    for name, value in values.items():
        setattr(row, name, value)
    return generated_secret


def _is_new_value(value: str) -> bool:
    return value not in ("", MASK)


def _extract_origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"[:255]


def _save_row(row: NotificationChannel) -> None:
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError:
        raise Conflict(
            format_message("A channel named {name!r} already exists.", name=row.name),
            code="name_taken",
            field="name",
            remedy="Choose another name.",
        ) from None


def _build_unknown_value_error(field: str, value: str, known_values: Sequence[str]) -> InvalidInput:
    return InvalidInput(
        format_message(
            "Unknown {field} {value!r}.", field=field.removesuffix("s"), value=value[:100]
        ),
        field=field,
        remedy=format_message("Use one of: {values}.", values=", ".join(known_values)),
    )
