"""The role that an identity provider or an external issuer assigns to a user by claims."""

from collections.abc import Mapping
from typing import Any

from bonobot.accounts.models import Issuer, Provider
from bonobot.accounts.roles import Role


def find_claimed_role(issuer: Issuer | Provider, claims: Mapping[str, Any]) -> Role | None:
    """Return the first role, in enum order, that a claim's values map to, else the default."""
    values = list_claim_strings(get_claim(claims, issuer.role_claim)) if issuer.role_claim else ()
    mapped_roles = {issuer.roles.get(value) for value in values}
    claimed_role = next((role for role in Role if role in mapped_roles), None)
    return claimed_role or (Role(issuer.role) if issuer.role else None)


def get_claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by name, or a nested field by a dotted path."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def list_claim_strings(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(item for item in values if isinstance(item, str))
