"""Cancelling: leave a sign-in half-way, or the session."""

from django.contrib.auth import logout
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_POST


@login_not_required
@require_POST
def cancel(request: HttpRequest) -> HttpResponseBase:
    """Forget who was about to sign in, or was signed in."""
    logout(request)
    return HttpResponseRedirect(reverse("admin:login"))
