"""Client id metadata documents: who a program is, read at the address that it has for a name.

The address is a stranger's, so it is read through egress: https, to a public address that was
judged, no redirect, little and soon. And only while a person is there who was sent by the program.
"""

import asyncio
import json
import re
from typing import Any
from urllib.parse import urlsplit

import httpx2
from oauth2_provider.cimd import CIMDError

from bonobot.authority.registration import BadMetadata, read
from bonobot.lib.egress import guarded_client
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import visible

LONGEST_URL = 255
MAX_BODY = 16 * 1024
CONNECT_S = 3
WHOLE_S = 6
SOONEST_S, LATEST_S = 300, 86_400
_MAX_AGE = re.compile(r"max-age\s*=\s*([0-9]{1,9})", re.ASCII)


class PersonIsThere:
    """Lets documents be read on the page that asks a person, and nowhere else.

    Programs come to the other addresses without anybody: there a name that isn't known stays so.
    """

    def has_permission(self, request: Any, client_id: str) -> bool:
        """Tell whether a document may be read for this request."""
        return urlsplit(str(request.uri)).path == "/oauth/authorize"


class Fetcher:
    """What the toolkit reads documents with."""

    def fetch(self, client_id: str) -> tuple[dict[str, Any], int]:
        """Return a document and for how many seconds it is believed; raises `CIMDError`."""
        _check(client_id)
        try:
            return runtime().call(_fetch, client_id)
        except (Problem, httpx2.HTTPError, TimeoutError, ValueError, RecursionError) as fault:
            raise CIMDError(visible(str(fault), 200)) from None


def _check(client_id: str) -> None:
    """Raise `CIMDError` for what can't be the address of such a document (section 3)."""
    try:
        parts = urlsplit(client_id)
        _port = parts.port
    except ValueError:
        raise CIMDError("it is no URL") from None
    plain = client_id.isascii() and client_id.isprintable() and " " not in client_id
    named = parts.scheme == "https" and parts.hostname and "@" not in parts.netloc
    steps = parts.path.split("/")
    if not (plain and named and len(client_id) <= LONGEST_URL and "#" not in client_id):
        raise CIMDError("it is not an https URL of a document")
    if not parts.path or "." in steps or ".." in steps:
        raise CIMDError("its path is blank, or goes up and down")


async def _fetch(client_id: str) -> tuple[dict[str, Any], int]:
    async with (
        asyncio.timeout(WHOLE_S),
        guarded_client(
            allow_private=False, connect_s=CONNECT_S, read_s=CONNECT_S, max_body=MAX_BODY
        ) as client,
    ):
        answer = await client.get(client_id, headers={"Accept": "application/json"})
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if answer.status_code != 200 or not re.fullmatch(r"application/([a-z0-9.-]+\+)?json", kind):
        raise ValueError(f"it answered with HTTP {answer.status_code} and {visible(kind, 80)!r}")
    document = json.loads(answer.content)
    if not isinstance(document, dict):
        raise BadMetadata("It is no object.")
    program = read(document)
    # Only what was looked at goes on: the toolkit stores it.
    known = {
        "client_id": document.get("client_id"),
        "client_name": program.name,
        "redirect_uris": list(program.redirect_uris),
        "grant_types": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_method": document.get("token_endpoint_auth_method", "none"),
    }
    secret = {name: "" for name in document if name.startswith("client_secret")}
    return known | secret, _believed(answer.headers.get("cache-control", ""))


def _believed(cache_control: str) -> int:
    found = _MAX_AGE.search(cache_control.lower())
    if "no-store" in cache_control.lower() or "no-cache" in cache_control.lower():
        return SOONEST_S
    return max(SOONEST_S, min(int(found[1]) if found else LATEST_S, LATEST_S))
