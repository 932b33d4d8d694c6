"""Challenges: how a program is told which token would do, and where it comes from. Pure.

The document is RFC 9728's, the header RFC 6750's with RFC 9728's member, as MCP asks for both.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from bonobot.lib.problems import Problem
from bonobot.tenancy.principals import InsufficientScope
from bonobot.tenancy.roles import Scope

# What a program may ask for here; REST is another door.
SCOPES = (Scope.TOOLS, Scope.AGENTS, Scope.MANAGE)


def resource_metadata(resource_url: str, *, issuers: Sequence[str] = ()) -> dict[str, Any]:
    """Return what describes an address as a protected resource.

    `issuers` are the authorization servers whose tokens are taken; without any, tokens are made by
    hand, and the member is left out.
    """
    found: dict[str, Any] = {
        "resource": resource_url,
        "resource_name": "Bonobot",
        "bearer_methods_supported": ["header"],
        "scopes_supported": [scope.value for scope in SCOPES],
    }
    return found | ({"authorization_servers": list(issuers)} if issuers else {})


def challenge(metadata_url: str, problem: Problem, usual: str = "") -> str:
    """Return the value of `WWW-Authenticate` for a refusal (401, or 403 for want of a scope).

    `usual` is the scope that whoever has no token should ask for.
    """
    members = {"resource_metadata": metadata_url}
    if usual and problem.status == HTTPStatus.UNAUTHORIZED:
        members["scope"] = usual
    if isinstance(problem, InsufficientScope):
        # One of them would do: the narrowest is asked for, so that nobody is given more.
        members |= {"error": problem.code, "scope": problem.scopes[0]}
    elif problem.code == "bad_token":
        members["error"] = "invalid_token"
    return "Bearer " + ", ".join(f'{name}="{_quoted(text)}"' for name, text in members.items())


def _quoted(text: str) -> str:
    """Return a text as it stands between quotation marks (RFC 9110, 5.6.4)."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
