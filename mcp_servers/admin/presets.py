"""Presets as rows: the platform's, loaded from the catalogue, and the organization's own."""

from typing import Any

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.lib.admin import MultipleChoicesDropdownFilter, display, register
from bonobot.lib.highlighting import highlighted
from bonobot.lib.untrusted import visible
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import ScopedAdmin
from mcp_servers.models import Preset


@register(Preset)
class PresetAdmin(ScopedAdmin):
    """What is offered to the active organization. Servers are added from the gallery."""

    list_display = ("preset", "category", "transport_type", "auth_type", "whose", "proven")
    list_filter = ("category", ("auth_type", MultipleChoicesDropdownFilter), "transport_type")
    search_fields = ("name", "slug", "description", "category")
    fieldsets = (
        (None, {"fields": ("name", "slug", "description", "category", "documentation_url")}),
        (_("How it is reached"), {"fields": ("transport_type", "endpoint", "auth_type", "auth")}),
        (_("What is filled in"), {"fields": ("filled_in",)}),
        (_("Why we believe that it exists"), {"fields": ("evidence",)}),
    )
    needs_to_view = Action.VIEW

    def get_queryset(self, request: HttpRequest) -> QuerySet[Preset]:
        """Return the platform's presets and the organization's own."""
        return Preset.objects.offered_to(self.principal(request).organization_id)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never here: the platform's come from the catalogue."""
        return False

    @display(description=_("preset"), ordering="name", header=True)
    def preset(self, preset: Preset) -> tuple[str, str]:
        """Return the name and what it is."""
        return visible(preset.name), visible(preset.description, 100)

    @display(description=_("whose"))
    def whose(self, preset: Preset) -> str:
        """Return who made it."""
        return _t("the organization's") if preset.organization_id else _t("Bonobot's catalogue")

    @display(description=_("checked"))
    def proven(self, preset: Preset) -> str:
        """Return when its package or address was last looked up."""
        proof: Any = preset.proof
        return str(proof.get("checked") or proof.get("checked_at") or "-")

    @display(description=_("endpoint"))
    def endpoint(self, preset: Preset) -> SafeString:
        """Return the endpoint with its parameters."""
        return _code(preset.endpoint_config)

    @display(description=_("sign-in details"))
    def auth(self, preset: Preset) -> SafeString:
        """Return how it signs in."""
        return _code(preset.auth_config)

    @display(description=_("parameters"))
    def filled_in(self, preset: Preset) -> SafeString:
        """Return the parameters."""
        return _code(preset.parameters)

    @display(description=_("proof"))
    def evidence(self, preset: Preset) -> SafeString:
        """Return where it was found."""
        return _code(preset.proof)


def _code(value: Any) -> SafeString:
    return format_html('<pre class="bb-code">{}</pre>', highlighted(value))
