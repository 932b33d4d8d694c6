"""Enable stdio presets of the catalog for organizations.

A stdio preset of the catalog starts a program on this host, so a platform administrator has to
enable it for each organization. HTTP presets start nothing, and an organization's own stdio presets
were written by a platform administrator: both are always enabled.
"""

from uuid import UUID

from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, InvalidInput
from bonobot.ledger.audit.admin_changes import record_change
from mcp_servers.models import Preset


def is_enabled(organization_id: UUID, preset: Preset) -> bool:
    """Tell whether an organization may use a preset (1 query for stdio presets)."""
    if not preset.needs_enabling:
        return True
    return Preset.objects.enabled_for(organization_id).filter(pk=preset.pk).exists()


def list_enabled_ids(organization_id: UUID) -> frozenset[UUID]:
    available = Preset.objects.available_to(organization_id).enabled_for(organization_id)
    return frozenset(available.order_by().values_list("pk", flat=True))


def can_use(principal: Principal, preset: Preset) -> bool:
    """Tell whether a principal may use a preset; platform administrators always may."""
    return principal.platform_admin or is_enabled(principal.organization_id, preset)


def check_enabled(principal: Principal, preset: Preset) -> None:
    """Raise `Forbidden` (`preset_not_enabled`) unless the principal may use the preset."""
    if can_use(principal, preset):
        return
    raise Forbidden(
        format_message(
            "The preset `{slug}` isn't enabled for this organization.", slug=preset.slug
        ),
        code="preset_not_enabled",
        field="preset",
        rule="presets",
        remedy=format_message(
            "This preset starts a process on this host. Ask a platform "
            "administrator to enable it on the preset's page or with `bonobot "
            "mcp enable-preset {slug}`.",
            slug=preset.slug,
        ),
    )


def enable_preset(principal: Principal, preset: Preset) -> None:
    """Enable a preset for the principal's organization, unless it is already enabled.

    Raises `Forbidden` (`platform_admin_only`), and `InvalidInput` (`preset_always_enabled`) for a
    preset that is always enabled.
    """
    _set_preset_enabled(principal, preset, enabled=True)


def disable_preset(principal: Principal, preset: Preset) -> None:
    """Disable a preset for the principal's organization; existing servers stay.

    Raises as `enable_preset`.
    """
    _set_preset_enabled(principal, preset, enabled=False)


def _set_preset_enabled(principal: Principal, preset: Preset, *, enabled: bool) -> None:
    if not principal.platform_admin:
        raise Forbidden(
            "Only a platform administrator can enable or disable a preset.",
            code="platform_admin_only",
            field="preset",
            rule="stdio",
            remedy="Contact a platform administrator.",
        )
    if not preset.needs_enabling:
        raise InvalidInput(
            format_message("The preset `{slug}` is always enabled.", slug=preset.slug),
            code="preset_always_enabled",
            field="preset",
            remedy="Only stdio presets from the catalog can be enabled or disabled.",
        )
    if is_enabled(principal.organization_id, preset) == enabled:
        return
    organization = Organization.objects.get(pk=principal.organization_id)
    action = "preset_enabled" if enabled else "preset_disabled"
    with record_change(
        organization_id=organization.pk,
        actor=principal.actor,
        action=action,
        resource_type="mcp_preset",
        resource_id=str(preset.pk),
        resource_name=preset.name,
        details={"preset": preset.slug},
        governed=False,
    ):
        if enabled:
            preset.enabled_for.add(organization)
        else:
            preset.enabled_for.remove(organization)
