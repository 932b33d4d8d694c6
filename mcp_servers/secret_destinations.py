"""Check where the stored secrets of a server are sent."""

from collections.abc import Mapping
from typing import Any

from bonobot.core.crypto.stored_secrets import check_kept_secrets, normalize_origin
from mcp_servers.models import Secret, Server

SecretKey = tuple[str, str]
FIELD_PREFIXES = {
    Secret.Placement.HEADER: "endpoint_config.headers.",
    Secret.Placement.ENV: "endpoint_config.env.",
}


def check_secret_destinations(
    old: Server | None, columns: Mapping[str, Any], secrets: Mapping[SecretKey, str | None]
) -> None:
    """Check that stored secrets (None) are not sent to an address they were not entered for.

    `columns` are the new ones of the server. Raises `InvalidInput` (`credential_required`).
    """
    if old is None:
        return
    old_columns = {
        name: getattr(old, name) for name in ("endpoint_config", "auth_type", "auth_config")
    }
    kept_fields = {
        key: _format_secret_field(key) for key, value in secrets.items() if value is None
    }
    auth_keys = {key for key in kept_fields if key[0] == Secret.Placement.AUTH}
    if columns["auth_type"] == Server.Auth.OAUTH2:
        fields = [kept_fields.pop(key) for key in auth_keys]
        check_kept_secrets(
            fields, _get_sign_in_addresses(old_columns), _get_sign_in_addresses(columns)
        )
    check_kept_secrets(
        kept_fields.values(), _get_server_addresses(old_columns), _get_server_addresses(columns)
    )


def _get_server_addresses(columns: Mapping[str, Any]) -> dict[str, str]:
    """Return the address that headers, API keys and the like are sent to."""
    return {"endpoint_config.url": normalize_origin(str(columns["endpoint_config"].get("url", "")))}


def _get_sign_in_addresses(columns: Mapping[str, Any]) -> dict[str, str]:
    """Return the full URLs that a client secret or key is sent to, as hosts serve many tenants.

    Without a token URL and an issuer, they are discovered from the server's own URL. The tokens
    that the secret obtains are sent to the server, so its address belongs to the secret, too.
    """
    auth_config = columns["auth_config"]
    addresses = {
        f"auth_config.{name}": str(auth_config.get(name) or "") for name in ("token_url", "issuer")
    }
    if any(addresses.values()):
        return addresses | _get_server_addresses(columns)
    return addresses | {"endpoint_config.url": str(columns["endpoint_config"].get("url", ""))}


def _format_secret_field(key: SecretKey) -> str:
    placement, name = key
    return f"{FIELD_PREFIXES.get(Secret.Placement(placement), 'auth_config.')}{name}"
