"""Fingerprints: equal texts are recognized, and nobody can find them by trying."""

import hashlib
from uuid import uuid4

from bonobot.ledger.fingerprints import fingerprint


def test_equal_texts_of_an_organization_have_one_fingerprint() -> None:
    acme = uuid4()
    assert fingerprint(acme, '{"pin":"1234"}') == fingerprint(acme, '{"pin":"1234"}')
    assert fingerprint(acme, '{"pin":"1234"}') != fingerprint(acme, '{"pin":"1235"}')


def test_another_organization_or_key_has_another(settings) -> None:
    acme, text = uuid4(), '{"pin":"1234"}'
    before = fingerprint(acme, text)
    assert fingerprint(uuid4(), text) != before
    settings.BONOBOT_AUDIT_KEYS = ["another", *settings.BONOBOT_AUDIT_KEYS]
    assert fingerprint(acme, text) != before
    assert before != hashlib.sha256(text.encode()).hexdigest()
