"""Profile pages of the signed-in user."""

from typing import Any

from allauth.account.decorators import reauthentication_required
from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils import translation
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext as _n

from bonobot.accounts import account_emails, profiles
from bonobot.accounts.admin_base.responses import View, add_problem_to_form, render_screen
from bonobot.accounts.models import Membership, User
from bonobot.accounts.second_factor import has_second_factor
from bonobot.accounts.views import single_sign_on
from bonobot.core.admin.theme import Select, TextInput
from bonobot.core.i18n import time_zones
from bonobot.core.problems import Problem


def _list_time_zones() -> list[tuple[str, Any]]:
    """Return the time zones grouped by area, as form choices."""
    areas: dict[str, list[tuple[str, str]]] = {}
    for name in sorted(time_zones.list_time_zones()):
        area, _slash, city = name.partition("/")
        areas.setdefault(area, []).append((name, city.replace("_", " ")))
    return [("", "UTC"), *areas.items()]


class ProfileForm(forms.ModelForm):
    """The profile fields that users edit themselves."""

    time_zone = forms.ChoiceField(
        label=_("Time zone"),
        choices=_list_time_zones,
        required=False,
        widget=Select,
        help_text=_(
            "Times, also in filters, use this time zone. Days in reports and budgets use UTC."
        ),
    )

    class Meta:
        model = User
        fields = profiles.OWN_FIELDS
        widgets = {
            "first_name": TextInput(attrs={"autocomplete": "given-name"}),
            "last_name": TextInput(attrs={"autocomplete": "family-name"}),
            "language": Select(choices=User._meta.get_field("language").choices),
        }


class EmailAddressForm(forms.Form):
    """A new email address."""

    email = forms.EmailField(
        label=_("New email address"),
        widget=TextInput(attrs={"autocomplete": "email", "type": "email"}),
    )


def show_profile(request: HttpRequest) -> HttpResponseBase:
    """Show the profile, or update it (POST)."""
    user: Any = request.user
    form = ProfileForm(request.POST or None, instance=User.objects.get(pk=user.pk))
    if request.method == "POST" and form.is_valid():
        try:
            profiles.update_own_profile(user, **form.cleaned_data)
        except Problem as problem:
            add_problem_to_form(form, problem)
        else:
            with translation.override(user.language or translation.get_language()):
                messages.success(request, _t("Profile saved."))
            return HttpResponseRedirect(reverse("admin:profile"))
    return render_screen(
        request,
        "profile/profile.html",
        title=_("Your profile"),
        form=form,
        has_factor=has_second_factor(user),
        providers=single_sign_on.list_linkable_providers(request),
        sessions=len(profiles.list_sessions(user)),
        memberships=Membership.objects.filter(user=user).select_related("organization"),
    )


@reauthentication_required
def request_email_change(request: HttpRequest) -> HttpResponseBase:
    """Request a new email address; mails a link to it."""
    user: Any = request.user
    form = EmailAddressForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        client_address = request.META.get("REMOTE_ADDR", "")
        try:
            new_email = profiles.request_email_change(
                user, form.cleaned_data["email"], client_address
            )
        except Problem as problem:
            add_problem_to_form(form, problem)
        else:
            message = _t("Open the link sent to %(address)s.") % {"address": new_email}
            messages.success(request, message)
            return HttpResponseRedirect(reverse("admin:profile"))
    return render_screen(
        request,
        "profile/change_address.html",
        title=_("Change email address"),
        form=form,
        can_send=account_emails.can_send(),
    )


def confirm_email_address(request: HttpRequest, text: str) -> HttpResponseBase:
    """Confirm a new email address; needs a POST, as mail scanners open links too."""
    user: Any = request.user
    if request.method == "POST":
        email = profiles.confirm_email_change(user, text)
        messages.success(request, _t("Your email address is now %(address)s.") % {"address": email})
        return HttpResponseRedirect(reverse("admin:profile"))
    return render_screen(
        request,
        "profile/confirm_address.html",
        title=_("Change email address"),
        address=profiles.verify_email_link(user, text),
    )


def show_sessions(request: HttpRequest) -> HttpResponseBase:
    """Show the user's sessions, or end all others (POST)."""
    user: Any = request.user
    current_session_key = request.session.session_key or ""
    if request.method == "POST":
        ended_count = profiles.sign_out_other_sessions(
            user, current_session_key=current_session_key
        )
        message = _n("%(n)d other session ended.", "%(n)d other sessions ended.", ended_count)
        messages.success(request, message % {"n": ended_count})
        return HttpResponseRedirect(reverse("admin:profile_sessions"))
    sessions = profiles.list_sessions(user)
    return render_screen(
        request,
        "profile/sessions.html",
        title=_("Active sessions"),
        sessions=sessions[: profiles.MAX_SESSIONS_SHOWN],
        more=max(0, len(sessions) - profiles.MAX_SESSIONS_SHOWN),
        other_count=sum(session.session_key != current_session_key for session in sessions),
        current_session_key=current_session_key,
    )


def build_profile_urls(wrap: Any) -> list[URLPattern]:
    """Return the URLs of the pages, each view wrapped with `wrap`."""
    views: tuple[tuple[str, View, str], ...] = (
        ("profile/", show_profile, "profile"),
        ("profile/email/", request_email_change, "profile_email"),
        ("profile/email/<str:text>/", confirm_email_address, "profile_confirm_email"),
        ("profile/link/<uuid:provider_id>/", single_sign_on.link_provider, "profile_link"),
        ("profile/unlink/<uuid:identity_id>/", single_sign_on.unlink_identity, "profile_unlink"),
        ("profile/sessions/", show_sessions, "profile_sessions"),
    )
    return [path(route, wrap(view), name=name) for route, view, name in views]
