"""Accept an invitation.

The secret of a link is moved from the URL to the session at once, so that it stays out of the
history and `Referer`. Opening a link doesn't use it up, as mail scanners open links too.
"""

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache

from bonobot.accounts import invitations
from bonobot.accounts.admin_base.responses import add_problem_message, add_problem_to_form
from bonobot.accounts.attempt_limits import JOIN_ADDRESS, charge_attempt
from bonobot.accounts.current_organization import ORGANIZATION_SESSION_KEY
from bonobot.accounts.models import User
from bonobot.accounts.views.login import render_signed_out_page, sign_in
from bonobot.core.admin.theme import PasswordInput, TextInput
from bonobot.core.problems import Problem


class AcceptInvitationForm(forms.ModelForm):
    """A new account: username, name and password."""

    password = forms.CharField(
        label=_("Password"),
        strip=False,
        widget=PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    again = forms.CharField(
        label=_("Repeat password"),
        strip=False,
        widget=PasswordInput(attrs={"autocomplete": "new-password"}),
    )

    class Meta:
        model = User
        fields = ("username", "first_name", "last_name")
        widgets = {
            "username": TextInput(attrs={"autocomplete": "username"}),
            "first_name": TextInput(attrs={"autocomplete": "given-name"}),
            "last_name": TextInput(attrs={"autocomplete": "family-name"}),
        }

    def clean(self) -> dict[str, Any]:
        """Check that the passwords match and pass Django's validators."""
        cleaned: dict[str, Any] = super().clean() or {}
        password = cleaned.get("password")
        if password and cleaned.get("again") not in (None, password):
            self.add_error("again", _t("The passwords don't match."))
        elif password:
            try:
                validate_password(password, self.instance)
            except ValidationError as error:
                self.add_error("password", error)
        return cleaned


@login_not_required
@never_cache
def open_invitation(request: HttpRequest, text: str) -> HttpResponseBase:
    """Move the secret from the URL to the session and redirect."""
    request.session[invitations.INVITATION_SESSION_KEY] = text
    response = HttpResponseRedirect(reverse("account_join"))
    response["Referrer-Policy"] = "no-referrer"
    return response


@login_not_required
@never_cache
def join_organization(request: HttpRequest) -> HttpResponseBase:
    """Show an invitation, or accept it (POST)."""
    text = str(request.session.get(invitations.INVITATION_SESSION_KEY, ""))
    try:
        charge_attempt(JOIN_ADDRESS, request.META.get("REMOTE_ADDR", ""))
        invitation = invitations.get_invitation_by_link(text)
    except Problem as problem:
        return render_signed_out_page(
            request,
            "link_expired.html",
            title=_("Invitation"),
            status=problem.status,
            problem=problem,
        )
    form = AcceptInvitationForm(request.POST if "password" in request.POST else None)
    if request.method == "POST" and (response := _accept_invitation(request, text, form)):
        return response
    return render_signed_out_page(
        request,
        "join.html",
        title=_("Invitation"),
        invitation=invitation,
        form=form,
        onward=reverse("account_join"),
    )


def _accept_invitation(
    request: HttpRequest, text: str, form: AcceptInvitationForm
) -> HttpResponseBase | None:
    """Join with the signed-in or a new account; return None if the form has errors."""
    user: Any = request.user
    if not user.is_authenticated:
        if not form.is_valid():
            return None
        user = form.save(commit=False)
        user.email = invitations.get_invitation_by_link(text).email
        user.set_password(form.cleaned_data["password"])
    try:
        member = invitations.accept_invitation(text, user)
    except Problem as problem:
        if user is request.user:
            add_problem_message(request, problem)
            return HttpResponseRedirect(reverse("admin:index"))
        add_problem_to_form(form, problem)
        return None
    request.session.pop(invitations.INVITATION_SESSION_KEY, None)
    request.session[ORGANIZATION_SESSION_KEY] = member.organization.slug
    messages.success(request, _t("Welcome to %(where)s.") % {"where": member.organization})
    if user is not request.user:
        return sign_in(request, user, reverse("admin:index"))
    return HttpResponseRedirect(reverse("admin:index"))
