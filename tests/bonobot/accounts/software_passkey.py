"""A security key in software: it registers and answers as one that a browser speaks with."""

import json
import secrets
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from fido2.cose import ES256
from fido2.utils import websafe_decode, websafe_encode
from fido2.webauthn import (
    AttestationObject,
    AttestedCredentialData,
    AuthenticatorData,
    CollectedClientData,
)

PRESENT = AuthenticatorData.FLAG.UP | AuthenticatorData.FLAG.UV


class SecurityKey:
    """One credential; `origin` is the page that the browser says it is at."""

    def __init__(self, origin: str = "https://testserver", rp: str = "testserver") -> None:
        self.origin, self.rp = origin, rp
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.id, self.count = secrets.token_bytes(32), 0

    def register(self, options: dict[str, Any]) -> str:
        """Return what a browser posts for the options of a registration."""
        public = ES256.from_cryptography_key(self.key.public_key())
        credential = AttestedCredentialData.create(b"\0" * 16, self.id, public)
        flags = PRESENT | AuthenticatorData.FLAG.AT
        data = AuthenticatorData.create(self._hash(), flags, self.count, credential)
        client = self._client("webauthn.create", options)
        attestation = AttestationObject.create("none", data, {})
        return self._posted(
            {
                "clientDataJSON": websafe_encode(client),
                "attestationObject": websafe_encode(attestation),
            }
        )

    def answer(self, options: dict[str, Any], **changed: Any) -> str:
        """Return what a browser posts for a sign-in; `kind` and `flags` change what it says."""
        self.count += 1
        flags = changed.get("flags", PRESENT)
        data = AuthenticatorData.create(self._hash(), flags, self.count)
        client = self._client(changed.get("kind", "webauthn.get"), options)
        signature = self.key.sign(
            bytes(data) + sha256(bytes(client)).digest(), ec.ECDSA(hashes.SHA256())
        )
        return self._posted(
            {
                "clientDataJSON": websafe_encode(client),
                "authenticatorData": websafe_encode(data),
                "signature": websafe_encode(signature),
            }
        )

    def _hash(self) -> bytes:
        return sha256(self.rp.encode()).digest()

    def _client(self, kind: str, options: dict[str, Any]) -> CollectedClientData:
        challenge = options["publicKey"]["challenge"]
        return CollectedClientData.create(kind, websafe_decode(challenge), self.origin)

    def _posted(self, response: dict[str, str]) -> str:
        number = websafe_encode(self.id)
        whole = {"id": number, "rawId": number, "type": "public-key", "response": response}
        return json.dumps(whole | {"clientExtensionResults": {}})
