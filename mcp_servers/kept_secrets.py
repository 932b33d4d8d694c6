"""Stored values stay with the host that they were entered for."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from mcp_servers.models import Secret, Server

SecretKey = tuple[str, str]


def keep_from_strangers(
    old: Server | None, config: Mapping[str, Any], secrets: Mapping[SecretKey, str | None]
) -> None:
    """Refuse to send a stored value (None) to a host that it was not entered for."""
    if old is not None and _moved(old, config):
        _refuse_kept(secrets)


def _moved(old: Server, config: Mapping[str, Any]) -> bool:
    """Tell whether the server would be reached at another origin than before."""
    before, now = (urlsplit(str(one.get("url", ""))) for one in (old.endpoint_config, config))
    return (before.scheme, before.netloc) != (now.scheme, now.netloc)


def _refuse_kept(secrets: Mapping[SecretKey, str | None]) -> None:
    """Refuse to send a stored value to a host that it was not entered for."""
    for (place, name), value in secrets.items():
        if value is None:
            members = {Secret.Placement.HEADER: "endpoint_config.headers."}
            raise Invalid(
                say("The stored value of `{name}` was entered for another address.", name=name),
                code="credential_needed",
                field=f"{members.get(Secret.Placement(place), 'auth_config.')}{name}",
                remedy="Enter it again for the new address, or leave it out.",
            )
