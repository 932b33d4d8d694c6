"""The page of the link that is mailed after a password reset."""

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache

from bonobot.accounts import reset_review
from bonobot.accounts.views.login import render_signed_out_page
from bonobot.core.problems import Problem


@login_not_required
@never_cache
def review_reset(request: HttpRequest, text: str) -> HttpResponseBase:
    """Show what may have been changed before a reset, or end it (POST)."""
    try:
        user = reset_review.get_reviewed_user(text)
        if request.method == "POST":
            reset_review.end_access(user, request.POST.getlist("identity"))
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
        review=reset_review.build_review(user),
    )
