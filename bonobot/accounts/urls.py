"""URLs below /admin/account/."""

from allauth.account.views import reauthenticate
from django.contrib.auth.decorators import login_not_required
from django.urls import include, path
from django.views.generic import RedirectView

from bonobot.accounts.views import (
    first_account,
    join_organization,
    password_reset,
    second_factor,
    single_sign_on,
)
from bonobot.accounts.views.login import cancel_sign_in
from bonobot.accounts.views.password_reset import review_reset

# URL names that allauth resolves; its own account pages aren't included.
redirect_to_login = login_not_required(
    RedirectView.as_view(pattern_name="admin:login", query_string=True)
)

urlpatterns = [
    path("invitation/<str:text>/", join_organization.open_invitation, name="account_invitation"),
    path("join/", join_organization.join_organization, name="account_join"),
    path("first/", first_account.show_first_account_form, name="account_first"),
    path("first/<str:text>/", first_account.open_first_account_link, name="account_first_link"),
    path("begin/", first_account.create_first_organization, name="account_begin"),
    path("login/", redirect_to_login, name="account_login"),
    path("cancel/", cancel_sign_in, name="account_logout"),
    path("again/", reauthenticate, name="account_reauthenticate"),
    path("password/", password_reset.ForgottenPasswordView.as_view(), name="admin_password_reset"),
    path(
        "password/<str:uidb64>/<str:token>/",
        password_reset.NewPasswordView.as_view(),
        name="account_new_password",
    ),
    path("review/<str:text>/", review_reset, name="account_review"),
    path("sso/", single_sign_on.choose_provider, name="account_sso_choose"),
    path("sso/<uuid:provider_id>/", single_sign_on.start_single_sign_on, name="account_sso"),
    path(
        "sso/<uuid:organization_id>/done/",
        single_sign_on.complete_single_sign_on,
        name="account_sso_done",
    ),
    # Before allauth's views, by the same names.
    path(
        "second-factor/recovery-codes/",
        second_factor.view_recovery_codes,
        name="mfa_view_recovery_codes",
    ),
    path(
        "second-factor/recovery-codes/download/",
        second_factor.download_recovery_codes,
        name="mfa_download_recovery_codes",
    ),
    path(
        "second-factor/webauthn/keys/<int:pk>/edit/",
        second_factor.rename_passkey,
        name="mfa_edit_webauthn",
    ),
    path("second-factor/", include("allauth.mfa.urls")),
]
