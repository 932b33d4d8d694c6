"""SecretValue: a value on its way to being sealed, kept apart from what may be read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Placement = Literal["header", "env", "auth"]

# The member of `endpoint_config` in which each placement's values are written.
MEMBERS: dict[Placement, str] = {"env": "env", "header": "headers"}


@dataclass(frozen=True, slots=True)
class SecretValue:
    """A value that is sealed when it is stored: where it goes, its name, and (unseen) itself."""

    placement: Placement
    name: str
    value: str = field(repr=False)


def put_back(
    endpoint_config: Mapping[str, Any],
    auth_config: Mapping[str, Any],
    secrets: Iterable[SecretValue],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both configurations with the secrets in their places, as the registry takes them."""
    endpoint, auth = dict(endpoint_config), dict(auth_config)
    for secret in secrets:
        if secret.placement == "auth":
            auth[secret.name] = secret.value
        else:
            endpoint.setdefault(MEMBERS[secret.placement], {})[secret.name] = secret.value
    return endpoint, auth
