"""Fingerprints: equal texts have equal fingerprints, which can't be computed without the key."""

import hashlib
import hmac
from uuid import UUID, uuid4

from django.conf import settings
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.crypto.signatures import FINGERPRINT_PURPOSE, compute_fingerprint


def test_equal_texts_of_an_organization_have_one_fingerprint() -> None:
    acme = uuid4()
    assert compute_fingerprint(acme, '{"pin":"1234"}') == compute_fingerprint(
        acme, '{"pin":"1234"}'
    )
    assert compute_fingerprint(acme, '{"pin":"1234"}') != compute_fingerprint(
        acme, '{"pin":"1235"}'
    )


def test_another_organization_or_key_has_another_fingerprint(settings) -> None:
    acme, text = uuid4(), '{"pin":"1234"}'
    before = compute_fingerprint(acme, text)
    assert compute_fingerprint(uuid4(), text) != before
    settings.BONOBOT_AUDIT_KEYS = ["another", *settings.BONOBOT_AUDIT_KEYS]
    assert compute_fingerprint(acme, text) != before
    assert before != hashlib.sha256(text.encode()).hexdigest()


@given(st.uuids(), st.text())
def test_a_fingerprint_is_the_documented_hmac(organization_id: UUID, text: str) -> None:
    secret = settings.BONOBOT_AUDIT_KEYS[0].encode()
    key = hmac.digest(secret, FINGERPRINT_PURPOSE + organization_id.bytes, "sha256")
    encoded = text.encode("utf-8", "surrogatepass")
    assert (
        compute_fingerprint(organization_id, text) == hmac.new(key, encoded, "sha256").hexdigest()
    )
