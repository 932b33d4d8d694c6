"""Create the first account and the first organization.

The secret of the link is moved from the URL to the session at once, so that it stays out of the
history and `Referer`. `bonobot createsuperuser` creates an account without an organization: its
user creates the first organization here and becomes its owner.
"""

from typing import Any

from django import forms
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache

from bonobot.accounts.admin_base.responses import add_problem_to_form
from bonobot.accounts.attempt_limits import JOIN_ADDRESS, charge_attempt
from bonobot.accounts.current_organization import get_sso_session
from bonobot.accounts.first_account import (
    create_first_account,
    create_organization_with_owner,
    require_valid_link,
)
from bonobot.accounts.models import Organization, User
from bonobot.accounts.views.login import render_signed_out_page, sign_in
from bonobot.core.admin.theme import PasswordInput, TextInput
from bonobot.core.problems import Problem

LINK_SESSION_KEY = "first_account_link"
PASSWORD_HELP = _("At least 8 characters, and not a common password.")


class CreateOrganizationForm(forms.Form):
    """The name of a new organization."""

    name = forms.CharField(
        label=_("Organization"),
        max_length=255,
        widget=TextInput(attrs={"autocomplete": "organization", "autofocus": True}),
        help_text=_("The display name. You can change it later."),
    )


class FirstAccountForm(CreateOrganizationForm):
    """The first organization and its owner; the password is asked for once."""

    username = forms.CharField(
        label=_("Username"),
        max_length=150,
        initial="admin",
        widget=TextInput(attrs={"autocomplete": "username"}),
    )
    email = forms.EmailField(
        label=_("Email"),
        required=False,
        widget=TextInput(attrs={"autocomplete": "email", "type": "email"}),
        help_text=_("Optional. For password resets."),
    )
    password = forms.CharField(
        label=_("Password"),
        strip=False,
        widget=PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text=PASSWORD_HELP,
    )

    def clean(self) -> dict[str, Any]:
        """Check the password with Django's validators."""
        cleaned: dict[str, Any] = super().clean() or {}
        if password := cleaned.get("password"):
            user = User(username=cleaned.get("username", ""), email=cleaned.get("email", ""))
            try:
                validate_password(password, user)
            except ValidationError as error:
                self.add_error("password", error)
        return cleaned


@login_not_required
@never_cache
def open_first_account_link(request: HttpRequest, text: str) -> HttpResponseBase:
    """Move the secret from the URL to the session and redirect."""
    request.session[LINK_SESSION_KEY] = text
    response = HttpResponseRedirect(reverse("account_first"))
    response["Referrer-Policy"] = "no-referrer"
    return response


@login_not_required
@never_cache
def show_first_account_form(request: HttpRequest) -> HttpResponseBase:
    """Show the form, or create the account and sign in (POST)."""
    link = str(request.session.get(LINK_SESSION_KEY, ""))
    try:
        charge_attempt(JOIN_ADDRESS, request.META.get("REMOTE_ADDR", ""))
        require_valid_link(link)
    except Problem as problem:
        return render_signed_out_page(
            request,
            "link_expired.html",
            title=_("Create your account"),
            status=problem.status,
            problem=problem,
        )
    form = FirstAccountForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        values = dict(form.cleaned_data)
        try:
            user = create_first_account(link, values.pop("name"), **values)
        except Problem as problem:
            add_problem_to_form(form, problem)
        else:
            request.session.pop(LINK_SESSION_KEY, None)
            return sign_in(request, user, reverse("admin:first_run"))
    return render_signed_out_page(
        request, "first_account.html", title=_("Create your account"), form=form
    )


def can_create_first_organization(request: HttpRequest) -> bool:
    user: Any = request.user
    if not (user.is_active and user.is_superuser) or get_sso_session(request) is not None:
        return False
    return not Organization.objects.exists()


@never_cache
def create_first_organization(request: HttpRequest) -> HttpResponseBase:
    """Show the form for the first organization, or create it (POST)."""
    if not can_create_first_organization(request):
        return HttpResponseRedirect(reverse("admin:index"))
    form = CreateOrganizationForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        user: Any = request.user
        try:
            create_organization_with_owner(user, form.cleaned_data["name"])
        except Problem as problem:
            add_problem_to_form(form, problem)
        else:
            return HttpResponseRedirect(reverse("admin:first_run"))
    return render_signed_out_page(
        request, "create_organization.html", title=_("Your organization"), form=form
    )
