"""Admin of tokens."""

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin import EmptyFieldListFilter
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from bonobot.accounts.admin_base.responses import render_screen
from bonobot.accounts.admin_base.scoped_admin import ServiceFormAdmin
from bonobot.accounts.extension_points import list_agent_choices, token_snippets
from bonobot.accounts.models import Token
from bonobot.accounts.roles import SCOPE_DESCRIPTIONS, Action, Role, TokenScope
from bonobot.accounts.templatetags.display import ago, render_badge
from bonobot.accounts.tokens import services as tokens
from bonobot.core.admin.theme import Select, Textarea, TextInput, action, display, register
from bonobot.core.i18n.localization import format_number
from bonobot.core.text.untrusted_text import make_visible

UNCHANGED = "kept"
LIFETIME_CHOICES = (
    ("30", _("30 days")),
    ("90", _("90 days")),
    ("365", _("1 year")),
    ("", _("never")),
)
LIMIT_FIELDS = ("scopes", "agents", "networks", "calls_per_minute")


class TokenForm(forms.ModelForm):
    """The role, limits and expiry of a token."""

    lifetime = forms.ChoiceField(
        label=_("Expires"), choices=LIFETIME_CHOICES, required=False, initial="90", widget=Select
    )
    scopes = forms.MultipleChoiceField(
        label=_("Scopes"),
        required=False,
        initial=[TokenScope.TOOLS],
        choices=[
            (scope.value, format_lazy("{} – {}", scope, SCOPE_DESCRIPTIONS[scope]))
            for scope in TokenScope
        ],
        widget=forms.CheckboxSelectMultiple,
        help_text=_(
            "Limits what the role allows. If none is selected, everything the role allows."
        ),
    )
    agents = forms.MultipleChoiceField(
        label=_("Allowed agents"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("The token can only access these agents and their tools."),
    )
    networks = forms.CharField(
        label=_("Allowed networks"),
        required=False,
        widget=Textarea(attrs={"rows": 2, "spellcheck": "false"}),
        help_text=_(
            "Addresses or ranges, one per line, such as 10.1.0.0/16. Leave empty to allow any "
            "network."
        ),
    )

    class Meta:
        model = Token
        fields = ("name", "role", "client", "calls_per_minute")
        widgets = {"client": TextInput}
        help_texts = {
            "name": _("The purpose of the token. The audit log shows this name."),
            "role": _(
                "What the client can do here. Choose the role with the least access it needs."
            ),
            "client": _("Which client uses the token, such as claude-code. For information only."),
            "calls_per_minute": _("Leave empty for the default limit."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Show the lists of an existing token; disable fields that a grant fixes."""
        super().__init__(*args, **kwargs)
        if self.instance.kind == "grant":
            for name in ("lifetime", "scopes", "agents"):
                self.fields[name].disabled = True
        if self.instance.pk and not self.instance._state.adding:
            self.fields["lifetime"].choices = [(UNCHANGED, _t("unchanged")), *LIFETIME_CHOICES]  # type: ignore[attr-defined]
            self.initial = dict(self.initial) | {
                "lifetime": UNCHANGED,
                "scopes": self.instance.scopes,
                "agents": self.instance.agent_ids,
                "networks": "\n".join(self.instance.networks),
            }

    def get_terms(self) -> dict[str, Any]:
        """Return the form's values as the service expects them."""
        values = self.cleaned_data
        if self.instance.kind == "grant":
            limits = {name: values[name] for name in ("name", "calls_per_minute")}
            return limits | {"networks": values["networks"].split()}
        terms = {name: values[name] for name in ("name", "client", "calls_per_minute", "scopes")}
        if values["lifetime"] != UNCHANGED:
            terms["expires_at"] = _compute_expiry(values["lifetime"])
        return terms | {"agent_ids": values["agents"], "networks": values["networks"].split()}


@register(Token)
class TokenAdmin(ServiceFormAdmin):
    """The active organization's tokens."""

    needs_to_view = (Action.MANAGE_TOKENS,)
    needs_to_change = Action.MANAGE_TOKENS
    can_delete = False  # tokens are revoked, so that the audit log can name them
    form = TokenForm
    list_display = ("name", "key", "role", "granted_by", "state", "last_used", "expires", "created")
    list_filter = ("role", ("user", EmptyFieldListFilter))
    search_fields = ("name", "key", "user__username")
    empty_icon = "key"
    add_label = _("Create token")
    empty_text = _(
        "A token gives a client access to the REST API, or over MCP to the tools of an "
        "agent or a server. It is shown once, when it is created."
    )
    change_form_template = "admin/tokens/token.html"
    actions = ("revoke_chosen",)
    problem_fields = {"agent_ids": "agents", "expires_at": "lifetime"}
    add_fieldsets = (
        (None, {"fields": ("name", "role", "client", "lifetime")}),
        (_("Limits"), {"fields": LIMIT_FIELDS}),
    )
    fieldsets = (
        (None, {"fields": ("name", "key", "role", "client", "lifetime")}),
        (_("Limits"), {"fields": LIMIT_FIELDS}),
        (
            _("Status"),
            {"fields": ("state", "last_used", "expires", "revoked", "created")},
        ),
    )
    readonly_fields = (
        *("state", "last_used", "expires", "revoked", "created", "key"),
        *("user", "client_id", "resource"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Token]:
        """Return the tokens with their users and whether they are active."""
        active_tokens = Token.objects.active().filter(pk=OuterRef("pk"))
        queryset: QuerySet[Token] = super().get_queryset(request)
        return queryset.select_related("user").annotate(lives=Exists(active_tokens))

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Show the user, OAuth client and address of a grant."""
        fieldsets = super().get_fieldsets(request, obj)
        if not isinstance(obj, Token) or obj.kind == "token":
            return fieldsets
        grant_fieldset = (
            _("Authorized by a person"),
            {"fields": ("user", "client_id", "resource")},
        )
        return (fieldsets[0], grant_fieldset, *fieldsets[1:])

    def get_form(
        self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any
    ) -> type[forms.ModelForm]:
        """Offer the organization's agents, deleted ones of the token, and permitted scopes."""
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        if "agents" in form.base_fields:
            form.base_fields["agents"].choices = list_agent_choices(
                self.get_principal(request).organization_id, getattr(obj, "agent_ids", ())
            )
        if "scopes" in form.base_fields and not self._may_offer_platform(request, obj):
            scopes = form.base_fields["scopes"]
            scopes.choices = [
                choice for choice in scopes.choices if choice[0] != TokenScope.PLATFORM
            ]
        return form

    def _may_offer_platform(self, request: HttpRequest, obj: Model | None) -> bool:
        """Return whether to offer `platform`: to administrators, or because the token has it."""
        has_it = TokenScope.PLATFORM in getattr(obj, "scopes", ())
        return has_it or self.get_principal(request).platform_admin

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Make the role of an existing token read-only: another role needs another token.

        A grant's client is also read-only.
        """
        grant_fields = ("client",) if isinstance(obj, Token) and obj.kind == "grant" else ()
        return (*self.readonly_fields, *grant_fields, "role") if obj else ()

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return whether the user may edit the token and it isn't revoked."""
        revoked = isinstance(obj, Token) and obj.revoked_at is not None
        return not revoked and super().has_change_permission(request, obj)

    @display(description=_("status"))
    def state(self, token: Token) -> SafeString:
        if token.revoked_at is not None:
            return render_badge("revoked", _t("revoked"))
        if token.expires_at is not None and token.expires_at <= timezone.now():
            return render_badge("expired", _t("expired"))
        if not getattr(token, "lives", True):
            return render_badge("waiting", _t("inactive: the person no longer has this access"))
        return render_badge("usable", _t("active"))

    @display(description=_("granted by"), ordering="user__username")
    def granted_by(self, token: Token) -> str:
        """Return the user of a grant; a dash for an issued token."""
        return token.user.get_username() if token.user else "–"

    @display(description=_("last used"), ordering="last_used_at")
    def last_used(self, token: Token) -> SafeString | str:
        return ago(token.last_used_at)

    @display(description=_("revoked"), ordering="revoked_at")
    def revoked(self, token: Token) -> SafeString | str:
        return ago(token.revoked_at)

    @display(description=_("expires"), ordering="expires_at")
    def expires(self, token: Token) -> SafeString | str:
        return ago(token.expires_at)

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Token:
        """Create or update the token; store a new secret on the request for `response_add`."""
        principal, terms = self.get_principal(request), form.get_terms()
        if change:
            token: Token = Token.objects.get(pk=form.instance.pk)
            tokens.update_token(principal, token, **terms)
            return token
        role = Role(form.cleaned_data["role"])
        token, request.token_text = tokens.create_token(principal, role=role, **terms)  # type: ignore[attr-defined]
        return token

    def response_add(
        self, request: HttpRequest, obj: Token, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Show the token's secret once; it isn't stored."""
        return render_screen(
            request,
            "tokens/token_created.html",
            title=obj.name,
            object=obj,
            opts=self.opts,
            text=request.token_text,  # type: ignore[attr-defined]
            panel=token_snippets.get()(obj, request.token_text),  # type: ignore[attr-defined]
        )

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs, including the page that revokes a token."""
        view = self.admin_site.admin_view(self.revoke_view)
        return [
            path("<path:pk>/revoke/", view, name="tenancy_token_revoke"),
            *super().get_urls(),
        ]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Link to the audit log entries of the token; those of a grant are of its user."""
        token = kwargs.get("obj")
        if isinstance(token, Token) and self.can_perform(request, Action.VIEW_AUDIT):
            query = urlencode({"actor_label": str(token.user or token.name)})
            context["audit_url"] = f"{reverse('admin:ledger_auditrow_changelist')}?{query}"
        return super().render_change_form(request, context, *args, **kwargs)

    def revoke_view(self, request: HttpRequest, pk: str) -> HttpResponseBase:
        """Confirm that a token is revoked, then revoke it and show its page."""
        principal, token = self.get_principal(request), self.get_object(request, pk)
        principal.require(Action.MANAGE_TOKENS)
        if token is None:
            self._get_obj_does_not_exist_redirect(request, self.opts, pk)
        if request.method != "POST" and token.revoked_at is None:
            return render_screen(
                request,
                "tokens/revoke.html",
                title=_("Revoke token"),
                object=token,
                opts=self.opts,
            )
        if request.method == "POST":
            tokens.revoke_token(principal, token)
            text = _t("The token %(name)s was revoked. Requests with it are denied immediately.")
            messages.success(request, text % {"name": make_visible(token.name, 80)})
        return HttpResponseRedirect(reverse("admin:tenancy_token_change", args=[token.pk]))

    @action(description=_("Revoke"), permissions=["change"])
    def revoke_chosen(
        self, request: HttpRequest, queryset: QuerySet[Token]
    ) -> HttpResponseRedirect:
        tokens_to_revoke = list(queryset.filter(revoked_at=None))
        for token in tokens_to_revoke:
            tokens.revoke_token(self.get_principal(request), token)
        count = len(tokens_to_revoke)
        text = ngettext("%(n)s token revoked.", "%(n)s tokens revoked.", count)
        messages.success(request, text % {"n": format_number(count)})
        return HttpResponseRedirect(reverse("admin:tenancy_token_changelist"))


def _compute_expiry(days: str) -> datetime | None:
    return timezone.now() + timedelta(days=int(days)) if days else None
