"""Knocking: is somebody there? A connection is opened to where a URL leads, and closed again."""

import httpcore2
import httpx2
from django.conf import settings

from bonobot.lib.egress import GuardedBackend, check_url, tls


async def knock(url: str, *, allow_private: bool, connect_s: float) -> None:
    """Connect to the host of `url`, over TLS where it says so; nothing is asked.

    Raises `EgressDenied`, or httpx2's errors of connecting.
    """
    check_url(url, allow_private=allow_private)
    parsed = httpx2.URL(url)
    secure = parsed.scheme == "https"
    backend = GuardedBackend(allow_private=allow_private, proxy=settings.BONOBOT_EGRESS_PROXY)
    try:
        stream = await backend.connect_tcp(
            parsed.raw_host.decode("ascii"), parsed.port or (443 if secure else 80), connect_s
        )
        try:
            if secure:
                host = parsed.raw_host.decode("ascii")
                stream = await stream.start_tls(tls(), server_hostname=host, timeout=connect_s)
        finally:
            await stream.aclose()
    except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProxyError) as error:
        raise httpx2.ConnectError(str(error)) from error
