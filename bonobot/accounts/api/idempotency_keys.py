"""`Idempotency-Key`: replay a stored answer.

The key is claimed before the work begins and the answer is kept after it. A claim without an answer
means that the first request still runs or that its process died; such a request is never repeated.
"""

import re
from datetime import timedelta
from typing import Any

from django.utils import timezone
from django.utils.crypto import salted_hmac

from bonobot.accounts.models import KeptAnswer
from bonobot.accounts.principals import Principal
from bonobot.core.crypto.sealed_values import SealedValue, SecretCodec
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.canonical_json import to_canonical_json

HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
KEPT = timedelta(hours=24)
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class IdempotentReplay(Exception):
    """This write was answered before; the answer is at hand."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__()
        self.status = status
        self.body = body


def claim(principal: Principal, key: str, request: dict[str, Any]) -> KeptAnswer:
    """Claim `key` for this request (method, path, body) of this principal.

    Raises `Replay` with the first answer, `Invalid` (`bad_idempotency_key`, 400, or
    `idempotency_mismatch`, 422) or `Conflict` (`idempotency_in_progress`).
    """
    if not _KEY.fullmatch(key):
        raise InvalidInput(
            "The idempotency key is empty, too long, or has characters that can't be seen.",
            code="bad_idempotency_key",
            field=HEADER,
            remedy="Send 1 to 255 visible ASCII characters, such as a UUID.",
        )
    # Keyed: bodies hold secrets, and a plain digest of them could be guessed.
    asked = salted_hmac(
        "bonobot.idempotency", to_canonical_json(request), algorithm="sha256"
    ).hexdigest()
    mine = KeptAnswer.objects.for_organization(principal.organization_id)
    mine.filter(created_at__lt=timezone.now() - KEPT).delete()
    row, created = mine.get_or_create(
        organization_id=principal.organization_id,
        principal=f"{principal.kind}:{principal.id}",
        key=key,
        defaults={"request_digest": asked},
    )
    if not created:
        _replay(row, asked)
    return row


def keep(row: KeptAnswer, status: int, body: str) -> None:
    """Keep the answer for the next time; what may be tried again is forgotten instead."""
    if status in (429, 503):
        row.delete()
    elif status < 500:  # after an internal error nobody knows what was done: it isn't repeated
        row.status = status
        # Sealed by hand: a whole answer is no secret that the logs have to know.
        row.body = SealedValue(SecretCodec(), text=body)  # type: ignore[assignment]  # what sealed fields take
        row.save(update_fields=["status", "body"])


def _replay(row: KeptAnswer, asked: str) -> None:
    if row.request_digest != asked:
        raise InvalidInput(
            "This idempotency key was used for another request.",
            code="idempotency_mismatch",
            field=HEADER,
            status=422,
            remedy="Use a new key for a new request.",
        )
    if row.status is None:
        raise Conflict(
            "The first request with this key has no answer: it still runs, or its process died.",
            code="idempotency_in_progress",
            field=HEADER,
            retry_after=2,
            remedy="Wait for it, or look at what was done and use a new key to do it again.",
        )
    raise IdempotentReplay(row.status, row.body.open())
