"""The pages of a forgotten password: Django's views, in the look of the login."""

from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import PasswordResetForm
from django.contrib.auth.views import PasswordResetConfirmView, PasswordResetView
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse_lazy
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache

from bonobot.lib.admin import site
from bonobot.lib.translating import whole
from bonobot.tenancy import letters
from bonobot.tenancy.attempts import TooMany
from bonobot.tenancy.resets import accounts_of
from bonobot.tenancy.second_factor import end_sessions, record_own
from bonobot.tenancy.tasks import mail_resets


@method_decorator((login_not_required, never_cache), name="dispatch")
class Forgotten(PasswordResetView):
    """Ask for an address; the answer is the same, and as quick, whether it is known or not."""

    template_name = "people/forgotten.html"
    success_url = reverse_lazy("admin:login")
    title = _("Forgotten your password?")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add the look, and whether mail can be sent at all."""
        return site.each_context(self.request) | super().get_context_data(
            can_send=letters.can_send(), **kwargs
        )

    def form_valid(self, form: PasswordResetForm) -> HttpResponse:
        """Leave the sending to the worker."""
        try:
            accounts = accounts_of(
                form.cleaned_data["email"], self.request.META.get("REMOTE_ADDR", "")
            )
        except TooMany as problem:
            form.add_error(None, ValidationError(whole(problem), code=problem.code))
            return self.form_invalid(form)
        transaction.on_commit(partial(mail_resets.delay, [str(one) for one in accounts]))
        told = _t("If there is an account with this address, a link is on its way to it.")
        messages.success(self.request, told)
        return HttpResponseRedirect(str(self.get_success_url()))


@method_decorator((login_not_required, never_cache), name="dispatch")
class NewPassword(PasswordResetConfirmView):
    """Take the new password; the second factor is asked for at the next sign-in as before."""

    template_name = "people/new_password.html"
    success_url = reverse_lazy("admin:login")
    title = _("A new password")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add the look."""
        return site.each_context(self.request) | super().get_context_data(**kwargs)

    def get_user(self, uidb64: str) -> Any:
        """Return whose link it is; nobody where the account is switched off."""
        found = super().get_user(uidb64)
        return found if found is not None and found.is_active else None

    def form_valid(self, form: Any) -> HttpResponse:
        """Keep it, end the person's sessions, and let them sign in."""
        answer: HttpResponse = super().form_valid(form)
        user: Any = self.user
        end_sessions(user)
        record_own("password_reset", user)
        messages.success(self.request, _t("Your password is changed. Sign in with it."))
        return answer
