"""Settings of invitations, passwords, sign-in and passkeys."""

from bonobot.core import environment
from bonobot.settings.limits import BONOBOT_PASSWORD_RESET_H

PASSWORD_RESET_TIMEOUT = BONOBOT_PASSWORD_RESET_H * 3_600

LOGIN_URL = "admin:login"
LOGIN_REDIRECT_URL = "admin:index"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# --- Sign-in through django-allauth and our adapters ----------------------------------------------

PEOPLE_APPS = ("allauth", "allauth.account", "allauth.mfa", "allauth.usersessions")
ACCOUNT_ADAPTER = "bonobot.accounts.views.login.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_EMAIL_VERIFICATION = "none"  # the invitation's link verifies an address
ACCOUNT_REAUTHENTICATION_TIMEOUT = 300  # seconds
MFA_ADAPTER = "bonobot.accounts.second_factor.SecondFactorAdapter"
MFA_FORMS = {
    "authenticate": "bonobot.accounts.second_factor_forms.AuthenticateForm",
    "reauthenticate": "bonobot.accounts.second_factor_forms.ReauthenticateForm",
    "authenticate_webauthn": "bonobot.accounts.second_factor_forms.AuthenticateWebAuthnForm",
    "reauthenticate_webauthn": "bonobot.accounts.second_factor_forms.ReauthenticateWebAuthnForm",
    "activate_totp": "bonobot.accounts.second_factor_forms.ActivateTotpForm",
    "add_webauthn": "bonobot.accounts.second_factor_forms.AddWebAuthnForm",
    "edit_webauthn": "bonobot.accounts.second_factor_forms.RenamePasskeyForm",
}
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_TOTP_ISSUER = "Bonobot"
MFA_TOTP_TOLERANCE = 1  # one step of 30 s before and after, for clock skew
# Browsers allow passkeys on https and localhost only; turn the library's check off for the latter.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = environment.read_text("BONOBOT_URL", "http://").startswith(
    "http://"
)
