"""Our addresses as resources (RFC 8707): a token is for one, and worth nothing elsewhere."""

from django.conf import settings

from bonobot.gateway.places import Address, read


def address_of(resource: str) -> Address | None:
    """Return the gateway's address that a resource is; None for another resource."""
    begin = settings.BONOBOT_URL
    return read(resource.removeprefix(begin)) if resource.startswith(f"{begin}/") else None


def resource_of(resource: str) -> str:
    """Return a resource as its grants have it; blank for one that isn't ours."""
    address = address_of(resource)
    return f"{settings.BONOBOT_URL}{address.path}" if address else ""
