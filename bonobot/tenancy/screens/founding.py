"""Founding: the first organization of an installation.

`bonobot createsuperuser` makes an account that belongs nowhere, as there is nowhere to belong to
yet. Whoever signs in with it names the organization here, and is its owner.
"""

from typing import Any

from django import forms
from django.db import transaction
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.text import slugify
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache

from bonobot.lib.admin import TextInput
from bonobot.lib.problems import Problem
from bonobot.tenancy.members import add_member, save_organization
from bonobot.tenancy.models import Organization, User
from bonobot.tenancy.principals import principal_for_user
from bonobot.tenancy.roles import Role
from bonobot.tenancy.screens.answers import refuse
from bonobot.tenancy.screens.outside import outside
from bonobot.tenancy.sign_on import mark_of

LONGEST_SLUG = 64
NAMELESS = "organization"  # of a name without letters that an address can hold


class FoundingForm(forms.Form):
    """What the organization is called."""

    name = forms.CharField(
        label=_("Name"),
        max_length=255,
        widget=TextInput(attrs={"autocomplete": "organization", "autofocus": True}),
        help_text=_("As people read it. It can be changed later."),
    )


def is_founding(request: HttpRequest) -> bool:
    """Tell whether who is signed in is to make the first organization."""
    user: Any = request.user
    if not (user.is_active and user.is_superuser) or mark_of(request) is not None:
        return False
    return not Organization.objects.exists()


@never_cache
def found(request: HttpRequest) -> HttpResponseBase:
    """Ask how the first organization is called, or make it; otherwise there is nothing to do."""
    if not is_founding(request):
        return HttpResponseRedirect(reverse("admin:index"))
    form = FoundingForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        user: Any = request.user
        try:
            found_organization(user, form.cleaned_data["name"])
        except Problem as problem:
            refuse(form, problem)
        else:
            return HttpResponseRedirect(reverse("admin:index"))
    return outside(request, "founding.html", title=_("Your organization"), form=form)


def found_organization(user: User, name: str) -> Organization:
    """Make an organization whose owner is `user`, a platform administrator; raises `Invalid`."""
    made = Organization(name=name, slug=slugify(name)[:LONGEST_SLUG] or NAMELESS)
    principal = principal_for_user(user, made)
    with transaction.atomic():
        save_organization(principal, made, adding=True)
        add_member(principal, user.get_username(), Role.OWNER)
    return made
