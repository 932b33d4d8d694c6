"""Signing in: the password, then the second factor; how often it may be tried.

The library (django-allauth) walks through the stages; nobody signs up by it, and its own pages for
accounts are not there.
"""

from hmac import compare_digest
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.internal.flows.login import perform_login, perform_password_login
from allauth.account.models import Login
from allauth.core.exceptions import ImmediateHttpResponse
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse

from bonobot.lib.translating import whole
from bonobot.tenancy.attempts import (
    SIGN_IN_ACCOUNT,
    SIGN_IN_ADDRESS,
    SIGN_IN_DEVICE,
    SIGN_IN_PAIR,
    TooMany,
    attempt,
)
from bonobot.tenancy.known_devices import find_device, remember_device
from bonobot.tenancy.models import User
from bonobot.tenancy.sign_on import MARK, PROOF

BACKEND = "django.contrib.auth.backends.ModelBackend"
# Said by the page itself.
UNTOLD = frozenset({"account/messages/logged_in.txt", "account/messages/logged_out.txt"})


class Account(DefaultAccountAdapter):
    """The library's questions about accounts, answered: nobody signs up."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Never: people are invited."""
        return False

    def add_message(self, request: HttpRequest, level: int, *args: Any, **kwargs: Any) -> None:
        """Leave out what a person sees anyway."""
        template = args[0] if args else kwargs.get("message_template")
        if template not in UNTOLD:
            super().add_message(request, level, *args, **kwargs)

    def login(self, request: HttpRequest, user: Any) -> None:
        """Let a person in, unless their password changed since they gave it half-way."""
        proof = request.session.pop(PROOF, None)
        ours = proof and proof["user"] == str(user.pk)
        if ours and not compare_digest(proof["hash"], user.get_session_auth_hash()):
            request.session.flush()
            raise ImmediateHttpResponse(HttpResponseRedirect(reverse("admin:login")))
        super().login(request, user)


class SignInView(LoginView):
    """The admin's sign-in; whoever has a second factor is asked for it next."""

    def form_valid(self, form: AuthenticationForm) -> Any:
        """Go on to the next stage, or in."""
        user = form.get_user()
        self.request.session.pop(MARK, None)  # of a sign-in elsewhere that was left half-way
        _keep_proof(self.request, user)
        login = Login(user=user, redirect_url=self.get_success_url())
        response = perform_password_login(self.request, {"username": user.get_username()}, login)
        remember_device(self.request, response, user)
        return response


def sign_in(request: HttpRequest, user: User, address: str) -> HttpResponseBase:
    """Sign a person in who has just proved who they are otherwise, and lead them to `address`."""
    user.backend = BACKEND  # as `authenticate` does
    _keep_proof(request, user)
    return perform_login(request, Login(user=user, redirect_url=address))


def _keep_proof(request: HttpRequest, user: Any) -> None:
    """Note which password the person has while more is asked for: a new one ends the sign-in."""
    request.session[PROOF] = {"user": str(user.pk), "hash": user.get_session_auth_hash()}


def count_attempt(request: HttpRequest, username: str) -> ValidationError | None:
    """Count a try of a password; return what refuses whoever has no second factor, if anything.

    That is so while the account is tried from many addresses: the password alone isn't enough then.
    A known device counts for itself. Raises `ValidationError` (code `too_many_attempts`).
    """
    address, account = request.META.get("REMOTE_ADDR", ""), username.strip().lower()
    try:
        if device := find_device(request, username):
            attempt(SIGN_IN_DEVICE, device)
            return None
        attempt(SIGN_IN_ADDRESS, address)
        attempt(SIGN_IN_PAIR, address, account)
    except TooMany as problem:
        raise _to_error(problem) from None
    try:
        attempt(SIGN_IN_ACCOUNT, account)
    except TooMany as problem:
        return _to_error(problem)
    return None


def _to_error(problem: TooMany) -> ValidationError:
    return ValidationError(whole(problem), code=problem.code)
