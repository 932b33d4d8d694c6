"""Password reset: request a link, set a new password, and review the account afterwards."""

from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import PasswordResetForm
from django.contrib.auth.views import PasswordResetConfirmView, PasswordResetView
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse, reverse_lazy
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache

from bonobot.accounts import account_emails, password_reset
from bonobot.accounts.attempt_limits import TooManyAttempts
from bonobot.accounts.email_addresses import delete_requested_addresses
from bonobot.accounts.password_reset import announce_reset, list_reset_accounts, reset_tokens
from bonobot.accounts.second_factor import end_sessions, record_own_change
from bonobot.accounts.tasks import send_password_resets
from bonobot.accounts.tokens.oauth_grants import end_user_grants
from bonobot.accounts.views.login import render_signed_out_page
from bonobot.core.admin.theme import site
from bonobot.core.i18n.localization import localize_problem
from bonobot.core.problems import Problem


@login_not_required
@never_cache
def review_reset(request: HttpRequest, text: str) -> HttpResponseBase:
    """Show what may have been changed before a reset, or end it (POST)."""
    try:
        user = password_reset.get_reviewed_user(text)
        if request.method == "POST":
            password_reset.end_access(user, request.POST.getlist("identity"))
            messages.success(request, _t("Access ended. Sign in with the new password."))
            return HttpResponseRedirect(reverse("admin:login"))
    except Problem as problem:
        return render_signed_out_page(
            request,
            "link_expired.html",
            title=_("Review your account"),
            status=problem.status,
            problem=problem,
        )
    return render_signed_out_page(
        request,
        "review_reset.html",
        title=_("Review your account"),
        review=password_reset.build_review(user),
    )


@method_decorator((login_not_required, never_cache), name="dispatch")
class ForgottenPasswordView(PasswordResetView):
    """Request a reset link; response and timing don't depend on whether an account exists."""

    template_name = "accounts/reset_password.html"
    success_url = reverse_lazy("admin:login")
    title = _("Forgot your password?")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add the admin context and whether mail can be sent."""
        return site.each_context(self.request) | super().get_context_data(
            can_send=account_emails.can_send(), **kwargs
        )

    def form_valid(self, form: PasswordResetForm) -> HttpResponse:
        """Enqueue the emails."""
        try:
            accounts = list_reset_accounts(
                form.cleaned_data["email"], self.request.META.get("REMOTE_ADDR", "")
            )
        except TooManyAttempts as problem:
            form.add_error(None, ValidationError(localize_problem(problem), code=problem.code))
            return self.form_invalid(form)
        transaction.on_commit(
            partial(send_password_resets.delay, [str(account_id) for account_id in accounts])
        )
        message = _t("If an account with this email address exists, a link has been sent to it.")
        messages.success(self.request, message)
        return HttpResponseRedirect(str(self.get_success_url()))


@method_decorator((login_not_required, never_cache), name="dispatch")
class NewPasswordView(PasswordResetConfirmView):
    """Set a new password; the next sign-in still needs the second factor."""

    template_name = "accounts/new_password.html"
    success_url = reverse_lazy("admin:login")
    title = _("New password")
    token_generator = reset_tokens

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add the admin context."""
        return site.each_context(self.request) | super().get_context_data(**kwargs)

    def get_user(self, uidb64: str) -> Any:
        """Return the user of a link, None if disabled."""
        user = super().get_user(uidb64)
        return user if user is not None and user.is_active else None

    def form_valid(self, form: Any) -> HttpResponse:
        """Save the password, end the user's sessions and grants, and redirect to the sign-in.

        A person with access to the account may have authorized a client.
        """
        user: Any = self.user
        with transaction.atomic():
            response: HttpResponse = super().form_valid(form)
            end_sessions(user)
            end_user_grants(user, reason="password_reset")
            delete_requested_addresses(user)
            record_own_change("password_reset", user)
            announce_reset(user)
        messages.success(
            self.request, _t("Your password was changed. Sign in with the new password.")
        )
        return response
