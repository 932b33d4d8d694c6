"""A Google service account: its key signs an assertion that Google changes into a token.

Google's own library would do so over sockets of its own, and at the address that the tenant's JSON
names; here it is always Google's, over the guarded client.
"""

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any

import httpx2
import jwt
from google.auth.credentials import Credentials

from agents.llm.endpoints import Endpoint
from agents.llm.port import ModelError
from bonobot.lib.sayings import say

TOKEN_URL = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
VALID_S = 3600
WAIT_S = 60.0


class ServiceAccount(Credentials):
    """Credentials of a service account's JSON; raises ModelError where it isn't one."""

    def __init__(
        self, endpoint: Endpoint, http: httpx2.AsyncClient, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__()
        self._http, self._loop = http, loop
        said = _read(endpoint.api_key)
        self.project = said["project_id"]
        self._email, self._key = said["client_email"], said["private_key"]

    def refresh(self, request: Any) -> None:
        """Get a new token; called in a thread. Raises ModelError."""
        asyncio.run_coroutine_threadsafe(self._refresh(), self._loop).result(WAIT_S)

    async def _refresh(self) -> None:
        now = int(time.time())
        claims = {
            "iss": self._email,
            "scope": SCOPE,
            "aud": TOKEN_URL,
            "iat": now,
            "exp": now + VALID_S,
        }
        try:
            signed = jwt.encode(claims, self._key, algorithm="RS256")
        except (ValueError, jwt.PyJWTError) as error:
            raise _unusable("its private key can't be read") from error
        asked = {"grant_type": GRANT, "assertion": signed}
        answer = await self._http.post(TOKEN_URL, data=asked)
        if answer.status_code != httpx2.codes.OK:
            raise _unusable(
                say(
                    "Google gave no token for it (HTTP {status_code})",
                    status_code=answer.status_code,
                )
            )
        said = answer.json()
        self.token = said["access_token"]
        # Naive, as the library compares it.
        expires = datetime.fromtimestamp(now + int(said.get("expires_in", VALID_S)), UTC)
        self.expiry = expires.replace(tzinfo=None)


def _read(text: str) -> dict[str, str]:
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    wanted = ("project_id", "client_email", "private_key")
    if not isinstance(said, dict) or not all(isinstance(said.get(n), str) for n in wanted):
        raise _unusable("it is not the JSON of one")
    return {name: said[name] for name in wanted}


def _unusable(why: str) -> ModelError:
    return ModelError(
        say("The service account can't be used: {why}.", why=why),
        code="model_auth",
        remedy="Put the JSON key file of a service account into the endpoint's API key.",
        retryable=False,
    )
