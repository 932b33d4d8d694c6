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

from bonobot.core.crypto.signatures import SIGNATURE, TIMESTAMP, sign
from bonobot.core.http.connection_errors import find_failure
from bonobot.core.http.egress import build_guarded_client
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_storable, make_visible
from bonobot.notifications.models import Notice

CONNECT_S = 5.0
WHOLE_S = 15.0
MAX_ANSWER = 16 * 1024
SHOWN_OF_ANSWER = 200
BESIDE_EACH_OTHER = 16


def build_body(notice: Notice) -> bytes:
    """Return the JSON body of a notification in UTF-8."""
    organization = notice.organization
    link = f"{settings.BONOBOT_URL}{notice.link}" if notice.link else ""
    return json.dumps(
        {
            "id": str(notice.pk),
            "event": notice.event,
            "severity": notice.severity,
            "occurred_at": notice.created_at.isoformat(),
            "organization": {"id": str(organization.pk), "slug": organization.slug},
            "subject": {
                "type": notice.subject_type,
                "id": notice.subject_id,
                "name": notice.subject_name,
            },
            "text": notice.text,
            "url": link,
        },
        ensure_ascii=False,
    ).encode()


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """The request of a notification; sending it needs no database access."""

    where: str
    allow_private: bool
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)


def post_of(notice: Notice) -> WebhookRequest:
    """Return the signed request of a notification; raises `UnreadableSecret`."""
    channel, body = notice.channel, build_body(notice)
    timestamp = int(timezone.now().timestamp())
    headers = {
        "Content-Type": "application/json",
        "Bonobot-Event": notice.event,
        TIMESTAMP: str(timestamp),
        SIGNATURE: sign(channel.secret.open(), timestamp, body),
        "Idempotency-Key": str(notice.pk),
    }
    return WebhookRequest(channel.origin, channel.allow_private, channel.url.open(), headers, body)


async def send_all(posts: Sequence[WebhookRequest]) -> list[str]:
    """Send requests concurrently; return the error of each, blank for success."""
    gate = asyncio.Semaphore(BESIDE_EACH_OTHER)

    async def one(post: WebhookRequest) -> str:
        async with gate:
            return await send(post)

    return list(await asyncio.gather(*map(one, posts)))


async def send(post: WebhookRequest) -> str:
    """Send one request; return the error, blank for success."""
    client = build_guarded_client(
        allow_private=post.allow_private,
        connect_s=CONNECT_S,
        read_s=WHOLE_S,
        max_body=MAX_ANSWER,
    )
    try:
        async with asyncio.timeout(WHOLE_S), client:
            asked = client.stream("POST", post.url, content=post.body, headers=post.headers)
            async with asked as answer:
                return await _describe_failure(post.where, answer)
    except TimeoutError:
        return f"{post.where} didn't answer within {WHOLE_S:g} s."
    except httpx2.HTTPError as error:
        known = find_failure(error)
        return f"{post.where} can't be reached: {known.why if known else type(error).__name__}."
    except Problem as problem:
        return f"{problem} ({problem.code})"


async def _describe_failure(where: str, answer: httpx2.Response) -> str:
    if answer.is_success:
        return ""
    said = ""
    parts: AsyncIterator[Any] = answer.aiter_bytes()
    async for part in parts:
        said = part[: SHOWN_OF_ANSWER * 4].decode("utf-8", errors="replace")
        break
    shown = make_visible(make_storable(said).strip(), SHOWN_OF_ANSWER)
    return f"{where} answered {answer.status_code}" + (f": {shown}" if shown else ".")
