"""Fetch a document from its address: through the guard, bounded, and only when it has changed."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx2

from bonobot.lib.egress import EgressDenied, guarded_client
from bonobot.lib.problems import Problem
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from mcp_servers.openapi.reading import LONGEST_TEXT

UPLOAD = "Check the address, or give the document itself."
LONGEST_TAG = 255
NOT_MODIFIED = 304


class NotFetched(Problem):
    """The document could not be had from its address."""

    code = "document_unreachable"
    status = 502
    title = "The document could not be fetched"


@dataclass(frozen=True)
class Fetched:
    """A document as it came; `text` is None where it is still the one of the tag."""

    text: str | None = field(repr=False)
    etag: str = ""


async def fetch(
    url: str,
    *,
    allow_private: bool,
    etag: str = "",
    headers: Mapping[str, str] | None = None,
    auth: httpx2.Auth | None = None,
    connect_s: float = 30,
    read_s: float = 60,
) -> Fetched:
    """Return the text at `url`; raises `NotFetched` or `EgressDenied`."""
    asked = {"Accept": "application/json, application/yaml, text/yaml;q=0.9, */*;q=0.5"}
    if etag:
        asked["If-None-Match"] = etag
    try:
        async with (
            asyncio.timeout(connect_s + read_s),
            guarded_client(
                allow_private=allow_private,
                headers={**(headers or {}), **asked},
                auth=auth,
                connect_s=connect_s,
                read_s=read_s,
                max_body=LONGEST_TEXT,
            ) as client,
        ):
            response = await client.get(url)
    except EgressDenied as refusal:
        refusal.field = "endpoint_config.document_url"
        raise
    except TimeoutError:
        raise _away("it did not answer in time") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise _away(visible(str(error), 200) or type(error).__name__) from error
    if response.status_code == NOT_MODIFIED and etag:
        return Fetched(None, etag)
    if response.status_code != httpx2.codes.OK:
        raise _away(say("it answered with HTTP {status_code}", status_code=response.status_code))
    text = response.content.decode("utf-8", "replace").replace("\x00", "\ufffd")
    return Fetched(text, response.headers.get("etag", "")[:LONGEST_TAG])


def _away(why: str) -> NotFetched:
    return NotFetched(
        say("The OpenAPI document could not be fetched: {why}.", why=why),
        field="endpoint_config.document_url",
        remedy=UPLOAD,
    )
