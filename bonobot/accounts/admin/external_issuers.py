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

from bonobot.accounts.admin_base.scoped_admin import ServiceFormAdmin
from bonobot.accounts.agent_directory import get_agent_directory
from bonobot.accounts.external_issuers import services as external_issuers
from bonobot.accounts.external_issuers.jwt_validation import OF_GATEWAY
from bonobot.accounts.models import Issuer
from bonobot.accounts.role_labels import SCOPE_MEANS
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import badge_html
from bonobot.core.admin.theme import Textarea, action, display, register
from bonobot.core.i18n.localization import localize_text
from bonobot.core.problems import Problem

WHO = ("name", "url", "audience", "enabled", "announced")
CLAIMS = ("subject_claim", "label_claim", "role_claim", "roles", "role", "scope_claim")
BOUNDS = ("scopes", "agents", "calls_per_minute")
TRUST = ("any_type", "allow_private")


class IssuerForm(forms.ModelForm):
    """The trust and limits of an issuer's tokens."""

    roles = forms.JSONField(
        label=_("Roles by value"),
        required=False,
        initial=dict,
        widget=Textarea(attrs={"rows": 3, "spellcheck": "false"}),
        help_text=_('Like {"bonobot-operators": "operator"}; the first role of the table counts.'),
    )
    scopes = forms.MultipleChoiceField(
        label=_("Scopes"),
        required=False,
        choices=[
            (scope.value, format_lazy("{} – {}", scope, SCOPE_MEANS[scope])) for scope in OF_GATEWAY
        ],
        widget=forms.CheckboxSelectMultiple,
        help_text=_("What tokens may have at most; none: all of these."),
    )
    agents = forms.MultipleChoiceField(
        label=_("Only for agents"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("Its tokens reach these agents and their tools, and nothing else."),
    )

    class Meta:
        model = Issuer
        fields = (
            *(name for name in (*WHO, *CLAIMS, *TRUST) if name != "roles"),
            "calls_per_minute",
        )
        help_texts = {"calls_per_minute": _("Of each subject; empty: the usual limit.")}

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

    def said(self) -> dict[str, Any]:
        """Return the form's values as the service expects them."""
        said = dict(self.cleaned_data)
        return said | {"agent_ids": said.pop("agents"), "roles": said["roles"] or {}}


@register(Issuer)
class IssuerAdmin(ServiceFormAdmin):
    """The active organization's issuers."""

    needs_to_view = (Action.MANAGE_ISSUERS,)
    needs_to_change = Action.MANAGE_ISSUERS
    removing = _("Its tokens open nothing here any more.")
    form = IssuerForm
    list_display = ("name", "url", "role", "state")
    search_fields = ("name", "url")
    empty_icon = "passkey"
    empty_text = _(
        "Programs come with tokens that are made here. Add an issuer to take its tokens, too: "
        "people then sign in where they do for everything else."
    )
    actions = ("check_chosen",)
    problem_fields = {"agent_ids": "agents"}
    fieldsets = (
        (None, {"fields": WHO}),
        (_("What its tokens say"), {"fields": CLAIMS}),
        (_("Bounds"), {"fields": BOUNDS}),
        (_("Trust"), {"fields": TRUST}),
    )

    def get_form(
        self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any
    ) -> type[forms.ModelForm]:
        """Offer the organization's agents and the deleted ones that the issuer refers to."""
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        if "agents" in form.base_fields:
            agents = get_agent_directory().list_choices(self.principal(request).organization_id)
            gone = set(getattr(obj, "agent_ids", ())) - {pk for pk, _name in agents}
            removed = [(pk, _t("removed: %s") % pk) for pk in sorted(gone)]
            form.base_fields["agents"].choices = [*agents, *removed]
        return form

    @display(description=_("state"))
    def state(self, issuer: Issuer) -> SafeString:
        """Return whether its tokens are accepted."""
        if not issuer.enabled:
            return badge_html("disabled", _t("off"))
        return badge_html("usable", _t("taken"))

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Issuer:
        """Create or update the issuer with the service."""
        principal = self.principal(request)
        if not change:
            return external_issuers.add(principal, **form.said())
        issuer: Issuer = Issuer.objects.get(pk=form.instance.pk)
        external_issuers.update_issuer(principal, issuer, **form.said())
        return issuer

    def delete_model(self, request: HttpRequest, obj: Issuer) -> None:
        """Delete the issuer with the service."""
        external_issuers.remove(self.principal(request), obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Issuer]) -> None:
        """Delete each issuer with the service."""
        for issuer in queryset:
            external_issuers.remove(self.principal(request), issuer)

    @action(description=_("Read the keys now"), permissions=["change"])
    def check_chosen(
        self, request: HttpRequest, queryset: QuerySet[Issuer]
    ) -> HttpResponseRedirect:
        """Fetch the keys of the selected issuers and show the result."""
        for issuer in queryset[:10]:
            try:
                keys = external_issuers.check(self.principal(request), issuer)
            except Problem as problem:
                messages.error(request, f"{issuer.name}: {localize_text(problem)}")
            else:
                told = _t("%(name)s publishes %(n)d keys.") % {"name": issuer.name, "n": keys}
                messages.success(request, told)
        return HttpResponseRedirect(reverse("admin:tenancy_issuer_changelist"))
