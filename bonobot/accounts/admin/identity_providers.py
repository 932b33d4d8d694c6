"""Admin of identity providers."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from bonobot.accounts import account_emails
from bonobot.accounts.admin_base.responses import format_problem
from bonobot.accounts.admin_base.scoped_admin import ServiceFormAdmin
from bonobot.accounts.models import Provider
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.sso import identity_providers as sso
from bonobot.accounts.templatetags.display import render_badge
from bonobot.core.admin.theme import SecretInput, Textarea, TextInput, action, display, register
from bonobot.core.problems import Problem
from bonobot.core.text.masking import MASK

CONNECTION_FIELDS = ("name", "url", "client_id", "secret", "redirect_address")
PEOPLE_FIELDS = ("domains", "trusts_email", "creates")
ROLE_FIELDS = ("role", "role_claim", "roles")
SIGN_IN_FIELDS = ("enabled", "announced", "entry_address", "second_factor", "allow_private")
ADDRESS_HTML = '<span style="overflow-wrap: anywhere">{}</span>'
READONLY_FIELDS = ("redirect_address", "entry_address")


class RoleMappingForm(forms.ModelForm):
    """A form with the roles that claims of a party's tokens give."""

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

    def validate_unique(self) -> None:
        """Leave this to the service, whose error has a remedy."""

    def get_values(self) -> dict[str, Any]:
        """Return the form's values as the service expects them."""
        return self.cleaned_data | {"roles": self.cleaned_data["roles"] or {}}


class TokenSignerAdmin(ServiceFormAdmin):
    """Parties whose tokens are checked with the keys that they publish."""

    list_display = ("name", "url", "role", "state")
    search_fields = ("name", "url")
    actions = ("check_chosen",)
    # The services of the model.
    create_row: Callable[..., Any]
    update_row: Callable[..., None]
    delete_row: Callable[[Principal, Any], None]
    check_row: Callable[[Principal, Any], int]

    @display(description=_("status"))
    def state(self, row: Any) -> SafeString:
        if not row.enabled:
            return render_badge("disabled", _t("disabled"))
        return render_badge("usable", _t("enabled"))

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Any:
        """Create or update the row with the service."""
        principal = self.get_principal(request)
        if not change:
            return self.create_row(principal, **form.get_values())
        row = self.model.objects.get(pk=form.instance.pk)
        self.update_row(principal, row, **form.get_values())
        return row

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        self.delete_row(self.get_principal(request), obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for row in queryset:
            self.delete_model(request, row)

    @action(description=_("Refresh keys"), permissions=["change"])
    def check_chosen(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponseRedirect:
        """Fetch the keys of the selected rows and show the result."""
        for row in queryset[:10]:
            try:
                keys = self.check_row(self.get_principal(request), row)
            except Problem as problem:
                problem_text = format_problem(problem)
                messages.error(request, format_html("{}: {}", row.name, problem_text))
            else:
                text = ngettext(
                    "%(name)s publishes %(n)d key.", "%(name)s publishes %(n)d keys.", keys
                )
                messages.success(request, text % {"name": row.name, "n": keys})
        return HttpResponseRedirect(reverse(f"admin:tenancy_{self.opts.model_name}_changelist"))


class IdentityProviderForm(RoleMappingForm):
    """Our client at a provider, which of its users may sign in, and with which role."""

    secret = forms.CharField(label=_("Client secret"), required=False, widget=SecretInput())
    domains = forms.CharField(
        label=_("Email domains"),
        required=False,
        widget=TextInput(attrs={"spellcheck": "false", "autocomplete": "off"}),
        help_text=_(
            "Separate with spaces. Only people with an email address in these domains can sign in."
        ),
    )

    class Meta:
        model = Provider
        fields = tuple(
            name
            for name in (*CONNECTION_FIELDS, *PEOPLE_FIELDS, *ROLE_FIELDS, *SIGN_IN_FIELDS)
            if name not in (*READONLY_FIELDS, "secret", "domains", "roles")
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Show the lists and the masked secret of an existing provider."""
        super().__init__(*args, **kwargs)
        row = self.instance
        if not row._state.adding:
            initial = {"domains": " ".join(row.domains), "roles": row.roles}
            initial |= {"secret": MASK if row.client_secret else ""}
            self.initial = dict(self.initial) | initial

    def get_values(self) -> dict[str, Any]:
        """Return the form's values as the service expects them."""
        values = super().get_values()
        values["client_secret"] = values.pop("secret")
        return values | {"domains": values["domains"].split()}


@register(Provider)
class IdentityProviderAdmin(TokenSignerAdmin):
    """The active organization's identity providers."""

    needs_to_view = (Action.MANAGE_ORGANIZATION,)
    needs_to_change = Action.MANAGE_ORGANIZATION
    delete_note = _("People can no longer sign in with this identity provider. Accounts are kept.")
    create_row = staticmethod(sso.create_provider)
    update_row = staticmethod(sso.update_provider)
    delete_row = staticmethod(sso.delete_provider)
    check_row = staticmethod(sso.check_provider)
    form = IdentityProviderForm
    readonly_fields = READONLY_FIELDS
    add_label = _("Add identity provider")
    empty_icon = "login"
    empty_text = _(
        "People sign in with username and password. Add your identity provider so that "
        "they can sign in with their usual account."
    )
    problem_fields = {"client_secret": "secret"}
    fieldsets = (
        (None, {"fields": CONNECTION_FIELDS}),
        (_("Allowed people"), {"fields": PEOPLE_FIELDS}),
        (_("Roles"), {"fields": ROLE_FIELDS}),
        (_("Sign-in"), {"fields": SIGN_IN_FIELDS}),
    )

    @display(description=_("redirect URI"))
    def redirect_address(self, provider: Provider) -> SafeString:
        """Return the redirect URI to register at the provider."""
        return format_html(ADDRESS_HTML, sso.build_redirect_uri(provider.organization_id))

    @display(description=_("sign-in URL"))
    def entry_address(self, provider: Provider) -> SafeString | str:
        """Return the sign-in URL for users to whom the sign-in page doesn't list the provider."""
        if provider._state.adding:
            return "–"
        return format_html(
            ADDRESS_HTML,
            account_emails.build_absolute_url(reverse("account_sso", args=[provider.pk])),
        )

    def get_form(
        self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any
    ) -> type[forms.ModelForm]:
        """Set the organization of a new provider, which its redirect URI contains."""
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        if obj is None:
            organization_id = self.get_principal(request).organization_id

            class NewProviderForm(form):
                def __init__(self, *args: Any, **kwargs: Any) -> None:
                    super().__init__(*args, **kwargs)
                    self.instance.organization_id = organization_id

            return NewProviderForm
        return form
