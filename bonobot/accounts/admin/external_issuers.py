"""Admin of external issuers."""

from typing import Any

from django import forms
from django.db.models import Model
from django.http import HttpRequest
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.admin.identity_providers import RoleMappingForm, TokenSignerAdmin
from bonobot.accounts.extension_points import list_agent_choices
from bonobot.accounts.external_issuers import services as external_issuers
from bonobot.accounts.external_issuers.jwt_validation import GATEWAY_SCOPES
from bonobot.accounts.models import Issuer
from bonobot.accounts.roles import SCOPE_DESCRIPTIONS, Action
from bonobot.core.admin.theme import register

IDENTITY_FIELDS = ("name", "url", "audience", "enabled", "announced")
CLAIM_FIELDS = ("subject_claim", "label_claim", "role_claim", "roles", "role", "scope_claim")
LIMIT_FIELDS = ("scopes", "agents", "calls_per_minute")
TRUST_FIELDS = ("any_type", "allow_private")


class IssuerForm(RoleMappingForm):
    """The trust and limits of an issuer's tokens."""

    scopes = forms.MultipleChoiceField(
        label=_("Scopes"),
        required=False,
        choices=[
            (scope.value, format_lazy("{} – {}", scope, SCOPE_DESCRIPTIONS[scope]))
            for scope in GATEWAY_SCOPES
        ],
        widget=forms.CheckboxSelectMultiple,
        help_text=_("The most that tokens can have. If none is selected, all of these."),
    )
    agents = forms.MultipleChoiceField(
        label=_("Allowed agents"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("Tokens from this issuer can only access these agents and their tools."),
    )

    class Meta:
        model = Issuer
        fields = (
            *(name for name in (*IDENTITY_FIELDS, *CLAIM_FIELDS, *TRUST_FIELDS) if name != "roles"),
            "calls_per_minute",
        )
        help_texts = {"calls_per_minute": _("Per subject. Leave empty for the default limit.")}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Show the JSON fields of an existing issuer."""
        super().__init__(*args, **kwargs)
        row = self.instance
        if not row._state.adding:
            self.initial = dict(self.initial) | {
                "roles": row.roles,
                "scopes": row.scopes,
                "agents": row.agent_ids,
            }

    def get_values(self) -> dict[str, Any]:
        """Return the form's values as the service expects them."""
        values = super().get_values()
        return values | {"agent_ids": values.pop("agents")}


@register(Issuer)
class IssuerAdmin(TokenSignerAdmin):
    """The active organization's issuers."""

    needs_to_view = (Action.MANAGE_ISSUERS,)
    needs_to_change = Action.MANAGE_ISSUERS
    delete_note = _("Tokens from this issuer are no longer accepted.")
    create_row = staticmethod(external_issuers.create_issuer)
    update_row = staticmethod(external_issuers.update_issuer)
    delete_row = staticmethod(external_issuers.delete_issuer)
    check_row = staticmethod(external_issuers.check_issuer)
    form = IssuerForm
    add_label = _("Add external issuer")
    empty_icon = "passkey"
    empty_text = _(
        "Clients use tokens created here. Add an external issuer to also accept its "
        "tokens, so that people can sign in with their usual account."
    )
    problem_fields = {"agent_ids": "agents"}
    fieldsets = (
        (None, {"fields": IDENTITY_FIELDS}),
        (_("Token claims"), {"fields": CLAIM_FIELDS}),
        (_("Limits"), {"fields": LIMIT_FIELDS}),
        (_("Trust"), {"fields": TRUST_FIELDS}),
    )

    def get_form(
        self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any
    ) -> type[forms.ModelForm]:
        """Offer the organization's agents and the deleted ones that the issuer refers to."""
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        if "agents" in form.base_fields:
            form.base_fields["agents"].choices = list_agent_choices(
                self.get_principal(request).organization_id, getattr(obj, "agent_ids", ())
            )
        return form
