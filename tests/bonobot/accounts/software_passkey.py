"""A software security key: it registers and signs in like one that a browser uses."""

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
    """One credential; `origin` is the page origin that the browser reports."""

    def __init__(self, origin: str = "https://testserver", rp: str = "testserver") -> None:
        self.origin, self.rp = origin, rp
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.id, self.count = secrets.token_bytes(32), 0

    def register(self, options: dict[str, Any]) -> str:
        """Build what a browser posts for the options of a registration."""
        public = ES256.from_cryptography_key(self.key.public_key())
        credential = AttestedCredentialData.create(b"\0" * 16, self.id, public)
        flags = PRESENT | AuthenticatorData.FLAG.AT
        data = AuthenticatorData.create(self._hash_rp(), flags, self.count, credential)
        client = self._build_client_data("webauthn.create", options)
        attestation = AttestationObject.create("none", data, {})
        return self._to_json(
            {
                "clientDataJSON": websafe_encode(client),
                "attestationObject": websafe_encode(attestation),
            }
        )

    def answer(self, options: dict[str, Any], **overrides: Any) -> str:
        """Build what a browser posts for a sign-in; `kind` and `flags` override the valid
        values."""
        self.count += 1
        flags = overrides.get("flags", PRESENT)
        data = AuthenticatorData.create(self._hash_rp(), flags, self.count)
        client = self._build_client_data(overrides.get("kind", "webauthn.get"), options)
        signature = self.key.sign(
            bytes(data) + sha256(bytes(client)).digest(), ec.ECDSA(hashes.SHA256())
        )
        return self._to_json(
            {
                "clientDataJSON": websafe_encode(client),
                "authenticatorData": websafe_encode(data),
                "signature": websafe_encode(signature),
            }
        )

    def _hash_rp(self) -> bytes:
        return sha256(self.rp.encode()).digest()

    def _build_client_data(self, kind: str, options: dict[str, Any]) -> CollectedClientData:
        challenge = options["publicKey"]["challenge"]
        return CollectedClientData.create(kind, websafe_decode(challenge), self.origin)

    def _to_json(self, response: dict[str, str]) -> str:
        credential_id = websafe_encode(self.id)
        credential_json = {
            "id": credential_id,
            "rawId": credential_id,
            "type": "public-key",
            "response": response,
        }
        return json.dumps(credential_json | {"clientExtensionResults": {}})
