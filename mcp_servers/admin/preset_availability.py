"""Views and button with which platform administrators enable and disable stdio presets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponseNotAllowed
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t

from bonobot.accounts.admin_base import redirect_back
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.models import Preset
from mcp_servers.presets.availability import disable_preset, enable_preset, is_enabled

View = Callable[..., HttpResponseBase]


@dataclass(frozen=True)
class PresetSwitch:
    """The state and URL of the button that enables or disables a preset."""

    organization: Organization
    enabled: bool
    url: str


def build_preset_switch(principal: Principal, preset: Preset) -> PresetSwitch | None:
    """Return the button for a preset (2 queries), or None if it can't be switched."""
    if not principal.platform_admin or not preset.needs_enabling:
        return None
    organization = Organization.objects.get(pk=principal.organization_id)
    enabled = is_enabled(organization.pk, preset)
    action = "disable" if enabled else "enable"
    url = reverse(f"admin:mcp_servers_preset_{action}", args=[preset.pk])
    return PresetSwitch(organization, enabled, url)


def enable_preset_view(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Enable a preset for the active organization."""
    return _set_preset_enabled(request, object_id, enabled=True)


def disable_preset_view(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Disable a preset for the active organization."""
    return _set_preset_enabled(request, object_id, enabled=False)


def _set_preset_enabled(
    request: HttpRequest, object_id: UUID, *, enabled: bool
) -> HttpResponseBase:
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    principal = resolve_principal(request)
    presets = Preset.objects.available_to(principal.organization_id)
    preset: Preset | None = presets.filter(pk=object_id).first()
    if preset is None:
        raise NotFound(
            format_message("The preset {slug!r} doesn't exist.", slug=str(object_id)),
            remedy="Check the organization you are working in.",
        )
    names: dict[str, Any] = {
        "preset": make_visible(preset.name),
        "organization": Organization.objects.get(pk=principal.organization_id).name,
    }
    if enabled:
        enable_preset(principal, preset)
        messages.success(request, _t("%(preset)s is enabled for %(organization)s.") % names)
    else:
        disable_preset(principal, preset)
        text = _t("%(preset)s is disabled for %(organization)s. Existing servers aren't affected.")
        messages.success(request, text % names)
    return redirect_back(request, reverse("admin:mcp_servers_preset_change", args=[preset.pk]))
