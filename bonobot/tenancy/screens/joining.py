"""The pages of somebody who was invited: make an account, or join with the one that they have.

The link's text is put into the session at once and taken out of the address, so that it stays in
no history and in no `Referer`. Opening it uses nothing up: programs that look into mail may.
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

from bonobot.lib.admin import PasswordInput, TextInput
from bonobot.lib.problems import Problem
from bonobot.lib.translating import localized
from bonobot.tenancy import invitations
from bonobot.tenancy.active import SESSION_KEY
from bonobot.tenancy.attempts import JOIN_ADDRESS, attempt
from bonobot.tenancy.models import User
from bonobot.tenancy.screens.answers import refuse
from bonobot.tenancy.screens.outside import outside
from bonobot.tenancy.signing_in import sign_in

PENDING = "invitation"


class JoinForm(forms.ModelForm):
    """An account: a name to sign in with, who it is, and a password."""

    password = forms.CharField(
        label=_("Password"),
        strip=False,
        widget=PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    again = forms.CharField(
        label=_("Password again"),
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
        """Check the passwords by Django's validators, against what else was said."""
        said: dict[str, Any] = super().clean() or {}
        password = said.get("password")
        if password and said.get("again") not in (None, password):
            self.add_error("again", _t("The two passwords differ."))
        elif password:
            try:
                validate_password(password, self.instance)
            except ValidationError as error:
                self.add_error("password", error)
        return said


@login_not_required
@never_cache
def open_invitation(request: HttpRequest, text: str) -> HttpResponseBase:
    """Take the secret out of the address and go on."""
    request.session[PENDING] = text
    answer = HttpResponseRedirect(reverse("account_join"))
    answer["Referrer-Policy"] = "no-referrer"
    return answer


@login_not_required
@never_cache
def join(request: HttpRequest) -> HttpResponseBase:
    """Show what somebody is invited to, or let them join."""
    text = str(request.session.get(PENDING, ""))
    try:
        attempt(JOIN_ADDRESS, request.META.get("REMOTE_ADDR", ""))
        invitation = invitations.opened(text)
    except Problem as problem:
        return outside(
            request,
            "ended.html",
            title=_("Invitation"),
            status=problem.status,
            problem=problem,
        )
    form = JoinForm(request.POST if "password" in request.POST else None)
    if request.method == "POST" and (answer := _joined(request, text, form)):
        return answer
    return outside(
        request,
        "join.html",
        title=_("Invitation"),
        invitation=invitation,
        form=form,
        onward=reverse("account_join"),
    )


def is_invited(request: HttpRequest) -> bool:
    """Tell whether the browser came with an invitation that can be accepted."""
    try:
        invitations.opened(str(request.session.get(PENDING, "")))
    except Problem:
        return False
    return True


def _joined(request: HttpRequest, text: str, form: JoinForm) -> HttpResponseBase | None:
    """Join with the account that is signed in, or with a new one; None: the form says why not."""
    user: Any = request.user
    if not user.is_authenticated:
        if not form.is_valid():
            return None
        user = form.save(commit=False)
        user.email = invitations.opened(text).email
        user.set_password(form.cleaned_data["password"])
    try:
        member = invitations.accept(text, user)
    except Problem as problem:
        if user is request.user:
            messages.error(request, localized(problem))
            return HttpResponseRedirect(reverse("admin:index"))
        refuse(form, problem)
        return None
    request.session.pop(PENDING, None)
    request.session[SESSION_KEY] = member.organization.slug
    messages.success(request, _t("Welcome to %(where)s.") % {"where": member.organization})
    if user is not request.user:
        return sign_in(request, user, reverse("admin:index"))
    return HttpResponseRedirect(reverse("admin:index"))
