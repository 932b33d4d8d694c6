"""The bus topic that wakes the open admin pages of an organization."""

from uuid import UUID

from bonobot.core.message_bus import wake_listeners


def build_bus_topic(organization_id: UUID) -> str:
    """Return the bus topic of an organization's open admin pages."""
    return f"pages:{organization_id}"


def wake_pages(organization_id: UUID) -> None:
    """Let the organization's open pages look for changes after the transaction commits."""
    wake_listeners(build_bus_topic(organization_id))
