"""Admin of invitations."""

from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from bonobot.accounts import invitations
from bonobot.accounts.admin_base.responses import format_problem, render_screen
from bonobot.accounts.admin_base.scoped_admin import ServiceFormAdmin
from bonobot.accounts.extension_points import agent_directory
from bonobot.accounts.invitations import SentInvitation
from bonobot.accounts.models import Invitation
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, Role
from bonobot.accounts.templatetags.display import ago, render_badge
from bonobot.core.admin.theme import display, register

URL_PREFIX = "tenancy_invitation"


class InvitationForm(forms.ModelForm):
    """The email address, role and agents of an invitation."""

    agents = forms.MultipleChoiceField(
        label=_("Agents"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("Agents that the person can run from the start. For the member role."),
    )

    class Meta:
        model = Invitation
        fields = ("email", "role")

    def validate_unique(self) -> None:
        """Leave this to the service, whose error has a remedy."""


@register(Invitation)
class InvitationAdmin(ServiceFormAdmin):
    """The active organization's invitations."""

    needs_to_view = (Action.MANAGE_MEMBERS,)
    needs_to_change = Action.MANAGE_MEMBERS
    can_change = False  # invitations are resent or revoked, not edited
    can_delete = False  # invitations are revoked, so that they stay readable
    form = InvitationForm
    fields = ("email", "role", "agents")
    list_display = ("email", "role", "state", "invited_by", "expires", "created")
    list_filter = ("role",)
    search_fields = ("email",)
    empty_icon = "mail"
    add_label = _("Invite member")
    empty_text = _("Invite people by email address. They receive a link that can be used once.")
    change_form_template = "admin/invitations/invitation.html"

    def get_form(
        self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kwargs: Any
    ) -> type[forms.ModelForm]:
        """Offer the organization's agents."""
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        if "agents" in form.base_fields:
            form.base_fields["agents"].choices = agent_directory.get().list_choices(
                self.get_principal(request).organization_id
            )
        return form

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Show the state of an existing invitation."""
        return (
            ("email", "role", "state", "invited_by", "email_sent", "expires", "accepted_by_name")
            if obj
            else self.fields
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Make all fields read-only: another role needs another invitation."""
        return self.get_fields(request, obj) if obj else ()

    @display(description=_("status"))
    def state(self, invitation: Invitation) -> SafeString:
        return render_state_badge(invitation)

    @display(description=_("email sent"))
    def email_sent(self, invitation: Invitation) -> SafeString | str:
        return ago(invitation.mailed_at)

    @display(description=_("accepted by"))
    def accepted_by_name(self, invitation: Invitation) -> str:
        return str(invitation.accepted_by or "–")

    @display(description=_("expires"), ordering="expires_at")
    def expires(self, invitation: Invitation) -> SafeString | str:
        return ago(invitation.expires_at)

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Invitation:
        """Create the invitation; store the result on the request for `response_add`."""
        values = form.cleaned_data
        sent_invitation = invitations.create_invitation(
            self.get_principal(request),
            values["email"],
            Role(values["role"]),
            agent_ids=values["agents"],
        )
        request.posted = sent_invitation  # type: ignore[attr-defined]
        return sent_invitation.invitation

    def response_add(
        self, request: HttpRequest, obj: Invitation, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Report that it was mailed, or show its link once."""
        sent_invitation: SentInvitation = request.posted  # type: ignore[attr-defined]
        return self._show_sent_invitation(request, sent_invitation)

    def get_urls(self) -> list[URLPattern]:
        """Return the URLs, including those of the actions."""
        action_urls = [
            path(
                f"<path:pk>/{name}/",
                self.admin_site.admin_view(require_POST(view)),
                name=f"{URL_PREFIX}_{name}",
            )
            for name, view in (("send", self.send_view), ("revoke", self.revoke_view))
        ]
        return [*action_urls, *super().get_urls()]

    def send_view(self, request: HttpRequest, pk: str) -> HttpResponseBase:
        invitation = self._get_invitation(request, pk)
        return self._show_sent_invitation(
            request, invitations.resend_invitation(self.get_principal(request), invitation)
        )

    def revoke_view(self, request: HttpRequest, pk: str) -> HttpResponseBase:
        invitations.revoke_invitation(
            self.get_principal(request), self._get_invitation(request, pk)
        )
        messages.success(request, _t("The invitation was revoked."))
        return _redirect_to_members()

    def _get_invitation(self, request: HttpRequest, pk: str) -> Invitation:
        principal = self.get_principal(request)
        principal.require(Action.MANAGE_MEMBERS)
        invitation: Invitation = Invitation.objects.get_or_404(principal.organization_id, pk=pk)
        return invitation

    def _show_sent_invitation(
        self, request: HttpRequest, sent_invitation: SentInvitation
    ) -> HttpResponse:
        if not sent_invitation.link:
            message = _t("An invitation was sent to %(email)s.") % {
                "email": sent_invitation.invitation.email
            }
            messages.success(request, message)
            return _redirect_to_members()
        return render_screen(
            request,
            "invitations/invitation_created.html",
            title=sent_invitation.invitation.email,
            object=sent_invitation.invitation,
            opts=self.opts,
            link=sent_invitation.link,
            problem=format_problem(sent_invitation.problem) if sent_invitation.problem else "",
        )


def render_state_badge(invitation: Invitation) -> SafeString:
    if invitation.accepted_at is not None:
        return render_badge("done", _t("accepted"))
    if invitation.revoked_at is not None:
        return render_badge("revoked", _t("revoked"))
    if invitation.expires_at <= timezone.now():
        return render_badge("expired", _t("expired"))
    return render_badge("waiting", _t("invited"))


def query_open_invitations(principal: Principal) -> QuerySet[Invitation]:
    rows = Invitation.objects.for_organization(principal.organization_id)
    open_rows: QuerySet[Invitation] = rows.open()
    return open_rows


def _redirect_to_members() -> HttpResponseRedirect:
    return HttpResponseRedirect(reverse("admin:tenancy_membership_changelist"))
