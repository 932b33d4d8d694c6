"""Admin of external issuers."""

from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from bonobot.accounts.admin_base.scoped_admin import ServiceFormAdmin
from bonobot.accounts.agent_directory import get_agent_directory
from bonobot.accounts.external_issuers import services as external_issuers
from bonobot.accounts.external_issuers.jwt_validation import GATEWAY_SCOPES
from bonobot.accounts.models import Issuer
from bonobot.accounts.role_labels import SCOPE_DESCRIPTIONS
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import render_badge
from bonobot.core.admin.theme import Textarea, action, display, register
from bonobot.core.i18n.localization import localize_text
from bonobot.core.problems import Problem

IDENTITY_FIELDS = ("name", "url", "audience", "enabled", "announced")
CLAIM_FIELDS = ("subject_claim", "label_claim", "role_claim", "roles", "role", "scope_claim")
LIMIT_FIELDS = ("scopes", "agents", "calls_per_minute")
TRUST_FIELDS = ("any_type", "allow_private")


class IssuerForm(forms.ModelForm):
    """The trust and limits of an issuer's tokens."""

    roles = forms.JSONField(
        label=_("Roles by claim value"),
        required=False,
        initial=dict,
        widget=Textarea(attrs={"rows": 3, "spellcheck": "false"}),
        help_text=_(
            'For example {"bonobot-operators": "operator"}. If several roles match, the first '
            "of owner, operator, reviewer, auditor, member is used."
        ),
    )
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

    def validate_unique(self) -> None:
        """Leave this to the service, whose error has a remedy."""

    def get_values(self) -> dict[str, Any]:
        """Return the form's values as the service expects them."""
        values = dict(self.cleaned_data)
        return values | {"agent_ids": values.pop("agents"), "roles": values["roles"] or {}}


@register(Issuer)
class IssuerAdmin(ServiceFormAdmin):
    """The active organization's issuers."""

    needs_to_view = (Action.MANAGE_ISSUERS,)
    needs_to_change = Action.MANAGE_ISSUERS
    delete_note = _("Tokens from this issuer are no longer accepted.")
    form = IssuerForm
    list_display = ("name", "url", "role", "state")
    search_fields = ("name", "url")
    empty_icon = "passkey"
    empty_text = _(
        "Clients use tokens created here. Add an external issuer to also accept its "
        "tokens, so that people can sign in with their usual account."
    )
    actions = ("check_chosen",)
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
            agents = get_agent_directory().list_choices(self.get_principal(request).organization_id)
            missing_ids = set(getattr(obj, "agent_ids", ())) - {pk for pk, _name in agents}
            deleted_choices = [(pk, _t("deleted: %s") % pk) for pk in sorted(missing_ids)]
            form.base_fields["agents"].choices = [*agents, *deleted_choices]
        return form

    @display(description=_("status"))
    def state(self, issuer: Issuer) -> SafeString:
        """Return whether its tokens are accepted."""
        if not issuer.enabled:
            return render_badge("disabled", _t("disabled"))
        return render_badge("usable", _t("enabled"))

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Issuer:
        """Create or update the issuer with the service."""
        principal = self.get_principal(request)
        if not change:
            return external_issuers.create_issuer(principal, **form.get_values())
        issuer: Issuer = Issuer.objects.get(pk=form.instance.pk)
        external_issuers.update_issuer(principal, issuer, **form.get_values())
        return issuer

    def delete_model(self, request: HttpRequest, obj: Issuer) -> None:
        external_issuers.delete_issuer(self.get_principal(request), obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Issuer]) -> None:
        for issuer in queryset:
            external_issuers.delete_issuer(self.get_principal(request), issuer)

    @action(description=_("Refresh keys"), permissions=["change"])
    def check_chosen(
        self, request: HttpRequest, queryset: QuerySet[Issuer]
    ) -> HttpResponseRedirect:
        """Fetch the keys of the selected issuers and show the result."""
        for issuer in queryset[:10]:
            try:
                keys = external_issuers.check_issuer(self.get_principal(request), issuer)
            except Problem as problem:
                messages.error(request, f"{issuer.name}: {localize_text(problem)}")
            else:
                text = ngettext(
                    "%(name)s publishes %(n)d key.", "%(name)s publishes %(n)d keys.", keys
                )
                messages.success(request, text % {"name": issuer.name, "n": keys})
        return HttpResponseRedirect(reverse("admin:tenancy_issuer_changelist"))
