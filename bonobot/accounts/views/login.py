"""Sign-in, the allauth adapter, and the layout of signed-out pages.

django-allauth runs the stages of a sign-in. Its sign-up and account pages aren't used.
"""

from hmac import compare_digest
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.internal.flows.login import perform_login, perform_password_login
from allauth.account.models import Login
from allauth.core.exceptions import ImmediateHttpResponse
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.auth.views import LoginView
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from bonobot.accounts.attempt_limits import (
    SIGN_IN_ACCOUNT,
    SIGN_IN_ADDRESS,
    SIGN_IN_DEVICE,
    SIGN_IN_PAIR,
    TooManyAttempts,
    charge_attempt,
)
from bonobot.accounts.current_organization import SIGN_IN_PROOF_KEY, SSO_SESSION_KEY
from bonobot.accounts.invitations import has_pending_invitation
from bonobot.accounts.known_devices import find_device, remember_device
from bonobot.accounts.models import Membership, User
from bonobot.accounts.second_factor import has_second_factor
from bonobot.core.admin import theme
from bonobot.core.admin.theme import site
from bonobot.core.i18n.localization import localize_problem

BACKEND = "django.contrib.auth.backends.ModelBackend"
# What replaces allauth's messages, by their templates; None where the page says it.
MESSAGES = {
    "account/messages/logged_in.txt": None,
    "account/messages/logged_out.txt": None,
    "mfa/messages/recovery_codes_generated.txt": _("Recovery codes created."),
    "mfa/messages/totp_activated.txt": _("Authenticator app set up."),
    "mfa/messages/totp_deactivated.txt": _("Authenticator app removed."),
    "mfa/messages/webauthn_added.txt": _("Passkey added."),
    "mfa/messages/webauthn_removed.txt": _("Passkey removed."),
}
# The ways to confirm who one is before a change, by allauth's ids.
CONFIRMATIONS = {
    "reauthenticate": _("Use your password"),
    "mfa_reauthenticate": _("Use a code"),
    "mfa_reauthenticate:webauthn": _("Use a passkey"),
}
# The titles of the pages whose views are allauth's, by their URL names.
PAGE_TITLES = {
    **dict.fromkeys(
        ("account_reauthenticate", "mfa_reauthenticate", "mfa_reauthenticate_webauthn"),
        _("Confirm that it's you"),
    ),
    "mfa_index": _("Second factor"),
    "mfa_authenticate": _("Confirm your sign-in"),
    "mfa_activate_totp": _("Set up authenticator app"),
    "mfa_deactivate_totp": _("Remove authenticator app"),
    "mfa_list_webauthn": _("Passkeys"),
    "mfa_add_webauthn": _("Add passkey"),
    "mfa_edit_webauthn": _("Rename passkey"),
    "mfa_remove_webauthn": _("Remove passkey"),
    "mfa_view_recovery_codes": _("Recovery codes"),
    "mfa_generate_recovery_codes": _("Create new recovery codes"),
}


class AccountAdapter(DefaultAccountAdapter):
    """allauth's account adapter, without sign-up."""

    error_messages = {
        **DefaultAccountAdapter.error_messages,
        "incorrect_password": _("The password is incorrect."),
        "rate_limited": _("Too many attempts. Wait a few minutes, then try again."),
        "too_many_login_attempts": _("Too many attempts. Wait a few minutes, then try again."),
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Return False: users are invited."""
        return False

    def add_message(self, request: HttpRequest, level: int, *args: Any, **kwargs: Any) -> None:
        """Replace allauth's messages with ours, and skip redundant ones."""
        template = args[0] if args else kwargs.get("message_template")
        if template not in MESSAGES:
            super().add_message(request, level, *args, **kwargs)
        elif text := MESSAGES[template]:
            super().add_message(request, level, message=str(text))

    def get_reauthentication_methods(self, user: Any) -> list[dict[str, Any]]:
        """Return the ways to confirm who the user is."""
        return [
            method | {"description": CONFIRMATIONS[method["id"]]}
            for method in super().get_reauthentication_methods(user)
        ]

    def login(self, request: HttpRequest, user: Any) -> None:
        """Sign in the user unless their password changed since the first stage."""
        proof = request.session.pop(SIGN_IN_PROOF_KEY, None)
        is_same_user = proof and proof["user"] == str(user.pk)
        if is_same_user and not compare_digest(proof["hash"], user.get_session_auth_hash()):
            request.session.flush()
            raise ImmediateHttpResponse(HttpResponseRedirect(reverse("admin:login")))
        super().login(request, user)


class SignInForm(theme.AuthenticationForm):
    """Allow members and invited users; `is_staff` is ignored."""

    error_messages = theme.AuthenticationForm.error_messages | {
        "invalid_login": _("Sign-in failed. Check the username and password."),
    }

    def clean(self) -> dict[str, Any]:
        """Count the attempt before checking the password.

        While an account is throttled, the error is the same for right and wrong passwords, unless
        the password is right and a second factor follows.
        """
        throttle_error = charge_sign_in_attempt(self.request, self.cleaned_data.get("username", ""))
        try:
            cleaned: dict[str, Any] = super().clean()
        except ValidationError as error:
            raise throttle_error or error from None
        if throttle_error and not has_second_factor(self.get_user()):
            raise throttle_error
        return cleaned

    def confirm_login_allowed(self, user: AbstractBaseUser) -> None:
        """Raise `ValidationError` for users without an organization."""
        if not (_is_member(user) or (user.is_active and has_pending_invitation(self.request))):
            raise ValidationError(
                _("You aren't a member of any organization yet. Ask an owner for an invitation."),
                code="no_organization",
            )


class SignInView(LoginView):
    """The admin's sign-in; a second factor, if set up, is the next stage."""

    def form_valid(self, form: AuthenticationForm) -> Any:
        """Continue with the next stage, or complete the sign-in."""
        user = form.get_user()
        self.request.session.pop(SSO_SESSION_KEY, None)  # left by an unfinished single sign-on
        _store_proof(self.request, user)
        login = Login(user=user, redirect_url=self.get_success_url())
        response = perform_password_login(self.request, {"username": user.get_username()}, login)
        remember_device(self.request, response, user)
        return response


def sign_in(request: HttpRequest, user: User, address: str) -> HttpResponseBase:
    """Sign in a user who was authenticated by other means, and redirect to `address`."""
    user.backend = BACKEND  # as `authenticate` does
    _store_proof(request, user)
    return perform_login(request, Login(user=user, redirect_url=address))


def _store_proof(request: HttpRequest, user: Any) -> None:
    """Store the password hash in the session: a new password ends the pending sign-in."""
    request.session[SIGN_IN_PROOF_KEY] = {
        "user": str(user.pk),
        "hash": user.get_session_auth_hash(),
    }


def charge_sign_in_attempt(request: HttpRequest, username: str) -> ValidationError | None:
    """Count a password attempt; return an error for users without a second factor, or None.

    The error is returned while the account is attempted from many addresses: a password alone isn't
    enough then. Known devices count separately. Raises `ValidationError` (`too_many_attempts`).
    """
    address, account = request.META.get("REMOTE_ADDR", ""), username.strip().lower()
    try:
        if device := find_device(request, username):
            charge_attempt(SIGN_IN_DEVICE, device)
            return None
        charge_attempt(SIGN_IN_ADDRESS, address)
        charge_attempt(SIGN_IN_PAIR, address, account)
    except TooManyAttempts as problem:
        raise _build_form_error(problem) from None
    try:
        charge_attempt(SIGN_IN_ACCOUNT, account)
    except TooManyAttempts as problem:
        return _build_form_error(problem)
    return None


def _build_form_error(problem: TooManyAttempts) -> ValidationError:
    return ValidationError(localize_problem(problem), code=problem.code)


def render_signed_out_page(
    request: HttpRequest, template: str, *, title: Any, status: int = 200, **context: Any
) -> TemplateResponse:
    """Return a page without navigation, from `templates/accounts/…`."""
    request.current_app = site.name
    full_context = {**site.each_context(request), "title": title, **context}
    return TemplateResponse(request, f"accounts/{template}", full_context, status=status)


def build_layout_context(request: HttpRequest) -> dict[str, Any]:
    """Add the admin's layout context and a title to allauth's pages (a context processor)."""
    match = request.resolver_match
    title = PAGE_TITLES.get(str(match.url_name)) if match else None
    return {**site.each_context(request), "title": title} if title else {}


@login_not_required
@require_POST
def cancel_sign_in(request: HttpRequest) -> HttpResponseBase:
    logout(request)
    return HttpResponseRedirect(reverse("admin:login"))


def _is_member(user: Any) -> bool:
    member = Membership.objects.filter(user=user)
    return user.is_active and (user.is_superuser or member.exists())
