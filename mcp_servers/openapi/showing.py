"""Show what a declared operation would be and send, before anything of it is written."""

from typing import Any

from bonobot.lib.egress import EgressDenied, check_url
from mcp_servers.openapi.composing import example_of, tool_of
from mcp_servers.openapi.declaring import read_one


def preview(said: Any, base_url: str, *, field: str = "") -> dict[str, Any]:
    """Return key, tool and an example of the request, without a sign-in; nothing is sent.

    Raises `Invalid`, and `EgressDenied` where the address could never be asked.
    """
    try:
        check_url(base_url, allow_private=True)  # whether it may be is said when it is written
    except EgressDenied as problem:
        problem.field = "url"
        raise
    one = read_one(said, base_url, field)
    tool = tool_of(one, base_url, field)
    sent = example_of(tool, base_url)
    return {
        "key": one.key,
        "tool": tool,
        "request": {
            "method": sent.method,
            "url": sent.url,
            "headers": [{"name": name, "value": value} for name, value in sent.headers],
            "body": (sent.body or b"").decode(),
        },
    }
