"""Tokens for programs: made and shown once, revoked, never read back."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.contrib import messages
from django.contrib.admin.utils import flatten_fieldsets
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from bonobot.lib.admin import Select, action, display, register
from bonobot.tenancy import tokens
from bonobot.tenancy.models import Token
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action, Role
from bonobot.tenancy.screens.answers import screen
from bonobot.tenancy.screens.scoped import ScopedAdmin
from bonobot.tenancy.templatetags.bonobot import ago, badge_html

LASTING = (("30", _("30 days")), ("90", _("90 days")), ("365", _("a year")), ("", _("for ever")))


class TokenForm(forms.ModelForm):
    """What a new token may do, and for how long."""

    lasting = forms.ChoiceField(
        label=_("Usable"), choices=LASTING, required=False, initial="90", widget=Select
    )
    agent = forms.ChoiceField(
        label=_("Only for agent"),
        required=False,
        widget=Select,
        help_text=_("Such a token reaches this agent and its tools, and nothing else."),
    )

    class Meta:
        model = Token
        fields = ("name", "role", "calls_per_minute")
        help_texts = {
            "name": _("What it is for; the audit shows this name."),
            "role": _("What the program may do here. Give the least that it needs."),
            "calls_per_minute": _("Empty: the usual limit."),
        }


@register(Token)
class TokenAdmin(ScopedAdmin):
    """The active organization's tokens.

    `agents_of` is filled by the room of agents, which lies above: it lists (id, name).
    """

    needs_to_view = Action.MANAGE_TOKENS
    needs_to_change = Action.MANAGE_TOKENS
    agents_of: ClassVar[Callable[[Principal], list[tuple[str, str]]]] = staticmethod(lambda _: [])
    form = TokenForm
    list_display = ("name", "key", "role", "state", "used", "until", "made")
    list_filter = ("role",)
    search_fields = ("name", "key")
    empty_icon = "key"
    empty_text = _(
        "A token lets a program in: over REST, or over MCP to the tools of an agent or a server. "
        "It is shown once, when it is made."
    )
    actions = ("revoke_chosen",)
    add_fieldsets = ((None, {"fields": ("name", "role", "agent", "calls_per_minute", "lasting")}),)
    fieldsets = (
        (None, {"fields": ("name", "key", "role", "agent_id", "calls_per_minute")}),
        (
            _("What became of it"),
            {"fields": ("state", "last_used_at", "expires_at", "revoked_at", "created_at")},
        ),
    )

    def get_form(
        self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any
    ) -> type[forms.ModelForm]:
        """Offer the organization's agents."""
        form = super().get_form(request, obj, change=change, **kwargs)
        if obj is None:
            agents = type(self).agents_of(self.principal(request))
            form.base_fields["agent"].choices = [("", _("all of its role")), *agents]  # type: ignore[attr-defined]
        return form

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return every field of a token that exists: it never changes."""
        shown: Any = self.fieldsets
        return flatten_fieldsets(shown) if obj else ()

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Allow the list's actions; a token itself never changes, it is replaced."""
        return obj is None and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never: a token is revoked, so that the audit can name it."""
        return False

    @display(description=_("state"))
    def state(self, token: Token) -> SafeString:
        """Return whether it can be used."""
        if token.revoked_at is not None:
            return badge_html("revoked", _t("revoked"))
        if token.expires_at is not None and token.expires_at <= timezone.now():
            return badge_html("waiting", _t("expired"))
        return badge_html("usable", _t("usable"))

    @display(description=_("last used"), ordering="last_used_at")
    def used(self, token: Token) -> SafeString | str:
        """Return when a program came with it last."""
        return ago(token.last_used_at)

    @display(description=_("expires"), ordering="expires_at")
    def until(self, token: Token) -> SafeString | str:
        """Return until when it can be used."""
        return ago(token.expires_at)

    @display(description=_("made"), ordering="created_at")
    def made(self, token: Token) -> SafeString | str:
        """Return when it was made."""
        return ago(token.created_at)

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Token:
        """Make the token; its text is kept on this request alone, for the answer."""
        said = form.cleaned_data
        token, text = tokens.issue(
            self.principal(request),
            name=said["name"],
            role=Role(said["role"]),
            agent_id=UUID(said["agent"]) if said["agent"] else None,
            expires_at=_end(said["lasting"]),
            calls_per_minute=said["calls_per_minute"],
        )
        request.token_text = text  # type: ignore[attr-defined]
        return token

    def save_model(self, request: HttpRequest, obj: Token, form: Any, change: bool) -> None:
        """Do nothing: `save_form` has written it."""

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Do nothing: there are no related rows in the form."""

    def response_add(
        self, request: HttpRequest, obj: Token, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Show the token's text, once, in the answer itself: it is stored nowhere."""
        return screen(
            request,
            "tokens/made.html",
            title=obj.name,
            object=obj,
            opts=self.opts,
            text=request.token_text,  # type: ignore[attr-defined]
        )

    @action(description=_("Revoke"), permissions=["change"])
    def revoke_chosen(
        self, request: HttpRequest, queryset: QuerySet[Token]
    ) -> HttpResponseRedirect:
        """End the chosen tokens at once."""
        chosen = list(queryset.filter(revoked_at=None))
        for token in chosen:
            tokens.revoke(self.principal(request), token)
        messages.success(request, _t("%(n)d tokens were revoked.") % {"n": len(chosen)})
        return HttpResponseRedirect(reverse("admin:tenancy_token_changelist"))


def _end(days: str) -> datetime | None:
    return timezone.now() + timedelta(days=int(days)) if days else None
