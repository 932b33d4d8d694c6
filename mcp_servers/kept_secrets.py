"""Which addresses the stored values of a server are sent to, and that they stay with those."""

from collections.abc import Mapping
from typing import Any

from bonobot.lib.stored_secrets import keep_with_addresses, origin_of
from mcp_servers.models import Secret, Server

SecretKey = tuple[str, str]
PLACES = {
    Secret.Placement.HEADER: "endpoint_config.headers.",
    Secret.Placement.ENV: "endpoint_config.env.",
}


def keep_from_strangers(
    old: Server | None, columns: Mapping[str, Any], secrets: Mapping[SecretKey, str | None]
) -> None:
    """Refuse to send a stored value (None) to an address that it was not entered for.

    `columns` are the server as it will be. Raises `Invalid` (`credential_needed`).
    """
    if old is None:
        return
    before = {name: getattr(old, name) for name in ("endpoint_config", "auth_type", "auth_config")}
    kept = {key: _field(key) for key, value in secrets.items() if value is None}
    of_sign_in = {key for key in kept if key[0] == Secret.Placement.AUTH}
    if columns["auth_type"] == Server.Auth.OAUTH2:
        fields = [kept.pop(key) for key in of_sign_in]
        keep_with_addresses(fields, _of_sign_in(before), _of_sign_in(columns))
    keep_with_addresses(kept.values(), _of_server(before), _of_server(columns))


def _of_server(columns: Mapping[str, Any]) -> dict[str, str]:
    """Return where headers, API keys and the like are sent."""
    return {"endpoint_config.url": origin_of(str(columns["endpoint_config"].get("url", "")))}


def _of_sign_in(columns: Mapping[str, Any]) -> dict[str, str]:
    """Return where a client secret or key is sent: as a whole, since hosts serve many tenants.

    Without a token URL and an issuer, what lies at the server's own address names them.
    """
    said = columns["auth_config"]
    found = {f"auth_config.{name}": str(said.get(name) or "") for name in ("token_url", "issuer")}
    if not any(found.values()):
        found["endpoint_config.url"] = str(columns["endpoint_config"].get("url", ""))
    return found


def _field(key: SecretKey) -> str:
    place, name = key
    return f"{PLACES.get(Secret.Placement(place), 'auth_config.')}{name}"
