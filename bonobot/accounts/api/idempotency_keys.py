"""`Idempotency-Key`: replay the stored response to a repeated write.

The key is claimed before the work begins, and the response is stored after it. A claim without a
response means that the first request is running or its process died; it is never repeated.
"""

import re
from datetime import timedelta
from typing import Any

from django.utils import timezone
from django.utils.crypto import salted_hmac

from bonobot.accounts.models import StoredResponse
from bonobot.accounts.principals import Principal
from bonobot.core.crypto.encrypted_fields import SealedValue, SecretCodec
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.canonical_json import to_canonical_json

IDEMPOTENCY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
ANSWER_LIFETIME = timedelta(hours=24)
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class IdempotentReplay(Exception):
    """This write was already answered, with the stored `status` and `body`."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__()
        self.status = status
        self.body = body


def claim_key(principal: Principal, key: str, request: dict[str, Any]) -> StoredResponse:
    """Claim `key` for this request (method, path, body) of this principal.

    Raises `IdempotentReplay` with the first response, `InvalidInput` (`bad_idempotency_key`, 400,
    or `idempotency_mismatch`, 422) or `Conflict` (`idempotency_in_progress`).
    """
    if not _KEY.fullmatch(key):
        raise InvalidInput(
            "The idempotency key is empty, too long, or contains invisible characters.",
            code="bad_idempotency_key",
            field=IDEMPOTENCY_HEADER,
            remedy="Send 1 to 255 visible ASCII characters, such as a UUID.",
        )
    # A keyed hash: bodies contain secrets, which a plain digest would let someone guess.
    request_digest = salted_hmac(
        "bonobot.idempotency", to_canonical_json(request), algorithm="sha256"
    ).hexdigest()
    stored_answers = StoredResponse.objects.for_organization(principal.organization_id)
    stored_answers.filter(created_at__lt=timezone.now() - ANSWER_LIFETIME).delete()
    row, created = stored_answers.get_or_create(
        organization_id=principal.organization_id,
        principal=f"{principal.kind}:{principal.id}",
        key=key,
        defaults={"request_digest": request_digest},
    )
    if not created:
        _raise_replay(row, request_digest)
    return row


def store_answer(row: StoredResponse, status: int, body: str) -> None:
    """Store the response; delete the claim instead if the request may be retried."""
    if status in (429, 503):
        row.delete()
    elif status < 500:  # after a 5xx the effect is unknown, so the claim stays and blocks a repeat
        row.status = status
        # Encrypted here, so that log masking doesn't learn a whole response as a secret.
        row.body = SealedValue(SecretCodec(), text=body)  # type: ignore[assignment]  # what sealed fields take
        row.save(update_fields=["status", "body"])


def _raise_replay(row: StoredResponse, request_digest: str) -> None:
    if row.request_digest != request_digest:
        raise InvalidInput(
            "This idempotency key was used for another request.",
            code="idempotency_mismatch",
            field=IDEMPOTENCY_HEADER,
            status=422,
            remedy="Use a new key for a new request.",
        )
    if row.status is None:
        raise Conflict(
            "The first request with this key has no response. It is still running, or its "
            "process stopped.",
            code="idempotency_in_progress",
            field=IDEMPOTENCY_HEADER,
            retry_after=2,
            remedy="Wait for the first request to finish, or check its result and retry with a "
            "new key.",
        )
    raise IdempotentReplay(row.status, row.body.open())
