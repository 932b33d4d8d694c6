"""Send notifications as signed webhook requests.

A receiver checks `Bonobot-Signature`: `v1=` and the hexadecimal HMAC-SHA256, with the channel's
secret, of the header `Bonobot-Timestamp` (seconds since 1970), a dot, and the raw body. The id in
`Idempotency-Key` stays the same for repeated attempts.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
from django.conf import settings
from django.utils import timezone

from bonobot.core.crypto.signatures import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign_body
from bonobot.core.http.connection_errors import find_failure
from bonobot.core.http.egress import build_guarded_client
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_storable, make_visible
from bonobot.notifications.models import Notification

CONNECT_TIMEOUT_S = 5.0
TOTAL_TIMEOUT_S = 15.0
MAX_RESPONSE_BYTES = 16 * 1024
MAX_SHOWN_LENGTH = 200
MAX_CONCURRENCY = 16


def build_body(notification: Notification) -> bytes:
    """Return the JSON body of a notification in UTF-8."""
    organization = notification.organization
    link = f"{settings.BONOBOT_URL}{notification.link}" if notification.link else ""
    return json.dumps(
        {
            "id": str(notification.pk),
            "event": notification.event,
            "severity": notification.severity,
            "occurred_at": notification.created_at.isoformat(),
            "organization": {"id": str(organization.pk), "slug": organization.slug},
            "subject": {
                "type": notification.subject_type,
                "id": notification.subject_id,
                "name": notification.subject_name,
            },
            "text": notification.text,
            "url": link,
        },
        ensure_ascii=False,
    ).encode()


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """The request of a notification; sending it needs no database access."""

    origin: str
    allow_private: bool
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def build_request(notification: Notification) -> WebhookRequest:
    """Return the signed request of a notification; raises `UnreadableSecret`."""
    channel, body = notification.channel, build_body(notification)
    timestamp = int(timezone.now().timestamp())
    headers = {
        "Content-Type": "application/json",
        "Bonobot-Event": notification.event,
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: sign_body(channel.secret.open(), timestamp, body),
        "Idempotency-Key": str(notification.pk),
    }
    return WebhookRequest(
        channel.origin,
        allow_private=channel.allow_private,
        url=channel.url.open(),
        headers=headers,
        body=body,
    )


async def send_requests(requests: Sequence[WebhookRequest]) -> list[str]:
    """Send requests concurrently; return the error of each, blank for success."""
    semaphore = asyncio.Semaphore(MAX_CONCURRENCY)

    async def send_limited(request: WebhookRequest) -> str:
        async with semaphore:
            return await send_request(request)

    return list(await asyncio.gather(*map(send_limited, requests)))


async def send_request(request: WebhookRequest) -> str:
    """Send one request; return the error, blank for success."""
    client = build_guarded_client(
        allow_private=request.allow_private,
        connect_s=CONNECT_TIMEOUT_S,
        read_s=TOTAL_TIMEOUT_S,
        max_body=MAX_RESPONSE_BYTES,
    )
    try:
        async with asyncio.timeout(TOTAL_TIMEOUT_S), client:
            stream = client.stream(
                "POST", request.url, content=request.body, headers=request.headers
            )
            async with stream as response:
                return await _describe_failure(request.origin, response)
    except TimeoutError:
        return f"{request.origin} didn't answer within {TOTAL_TIMEOUT_S:g} s."
    except httpx2.HTTPError as error:
        failure = find_failure(error)
        return (
            f"{request.origin} can't be reached: "
            f"{failure.reason if failure else type(error).__name__}."
        )
    except Problem as problem:
        return f"{problem} ({problem.code})"


async def _describe_failure(origin: str, response: httpx2.Response) -> str:
    if response.is_success:
        return ""
    text = ""
    chunks: AsyncIterator[Any] = response.aiter_bytes()
    async for chunk in chunks:
        text = chunk[: MAX_SHOWN_LENGTH * 4].decode("utf-8", errors="replace")
        break
    excerpt = make_visible(make_storable(text).strip(), MAX_SHOWN_LENGTH)
    return f"{origin} answered {response.status_code}" + (f": {excerpt}" if excerpt else ".")
