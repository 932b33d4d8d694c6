"""Admin of identity providers."""

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

from bonobot.accounts import email as account_email
from bonobot.accounts.admin_base.scoped_admin import ServiceFormAdmin
from bonobot.accounts.models import Provider
from bonobot.accounts.roles import Action
from bonobot.accounts.sso import services as sso
from bonobot.accounts.templatetags.display import render_badge
from bonobot.core.admin.theme import SecretInput, Textarea, TextInput, action, display, register
from bonobot.core.i18n.localization import localize_text
from bonobot.core.problems import Problem
from bonobot.core.text.masking import MASK

CONNECTION_FIELDS = ("name", "url", "client_id", "secret", "redirect_address")
PEOPLE_FIELDS = ("domains", "trusts_email", "creates")
ROLE_FIELDS = ("role", "role_claim", "roles")
SIGN_IN_FIELDS = ("enabled", "announced", "entry_address", "second_factor", "allow_private")
ADDRESS_HTML = '<span style="overflow-wrap: anywhere">{}</span>'
READONLY_FIELDS = ("redirect_address", "entry_address")


class IdentityProviderForm(forms.ModelForm):
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

    def validate_unique(self) -> None:
        """Leave this to the service, whose error has a remedy."""

    def get_values(self) -> dict[str, Any]:
        """Return the form's values as the service expects them."""
        values = dict(self.cleaned_data)
        secret = values.pop("secret")
        lists = {"domains": values["domains"].split(), "roles": values["roles"] or {}}
        return values | lists | {"client_secret": secret}


@register(Provider)
class IdentityProviderAdmin(ServiceFormAdmin):
    """The active organization's identity providers."""

    needs_to_view = (Action.MANAGE_ORGANIZATION,)
    needs_to_change = Action.MANAGE_ORGANIZATION
    delete_note = _("People can no longer sign in with this identity provider. Accounts are kept.")
    form = IdentityProviderForm
    list_display = ("name", "url", "role", "state")
    search_fields = ("name", "url")
    readonly_fields = READONLY_FIELDS
    empty_icon = "login"
    empty_text = _(
        "People sign in with user name and password. Add your identity provider so that "
        "they can sign in with their usual account."
    )
    actions = ("check_chosen",)
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
            return "-"
        return format_html(
            ADDRESS_HTML,
            account_email.build_absolute_url(reverse("account_sso", args=[provider.pk])),
        )

    @display(description=_("status"))
    def state(self, provider: Provider) -> SafeString:
        """Return whether users can sign in with it."""
        if not provider.enabled:
            return render_badge("disabled", _t("disabled"))
        return render_badge("usable", _t("enabled"))

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

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Provider:
        """Create or update the provider with the service."""
        principal = self.get_principal(request)
        if not change:
            return sso.create_provider(principal, **form.get_values())
        provider: Provider = Provider.objects.get(pk=form.instance.pk)
        sso.update_provider(principal, provider, **form.get_values())
        return provider

    def delete_model(self, request: HttpRequest, obj: Provider) -> None:
        sso.delete_provider(self.get_principal(request), obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Provider]) -> None:
        for provider in queryset:
            sso.delete_provider(self.get_principal(request), provider)

    @action(description=_("Refresh keys"), permissions=["change"])
    def check_chosen(
        self, request: HttpRequest, queryset: QuerySet[Provider]
    ) -> HttpResponseRedirect:
        """Fetch the metadata and keys of the selected providers and show the result."""
        for provider in queryset[:10]:
            try:
                keys = sso.check_provider(self.get_principal(request), provider)
            except Problem as problem:
                messages.error(request, f"{provider.name}: {localize_text(problem)}")
            else:
                text = ngettext(
                    "%(name)s publishes %(n)d key.", "%(name)s publishes %(n)d keys.", keys
                )
                messages.success(request, text % {"name": provider.name, "n": keys})
        return HttpResponseRedirect(reverse("admin:tenancy_provider_changelist"))
