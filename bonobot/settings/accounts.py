"""Invitations, passwords, login, passkeys."""

from bonobot.core import environment

# Days after which an invitation's link is of no use.
BONOBOT_INVITATION_DAYS = environment.read_number(
    "BONOBOT_INVITATION_DAYS", 7, minimum=1, maximum=90
)
# Hours after which a link for a new password is of no use.
BONOBOT_PASSWORD_RESET_H = environment.read_number(
    "BONOBOT_PASSWORD_RESET_H", 4, minimum=1, maximum=72
)
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

# --- Signing in: django-allauth walks through the stages; our adapters answer its questions -------

# humanize: what allauth's pages of passkeys ask for.
PEOPLE_APPS = (
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    "django.contrib.humanize",
)
ACCOUNT_ADAPTER = "bonobot.accounts.views.login.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_EMAIL_VERIFICATION = "none"  # an address is proved by an invitation's link
ACCOUNT_REAUTHENTICATION_TIMEOUT = 300  # seconds
MFA_ADAPTER = "bonobot.accounts.second_factor.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_TOTP_ISSUER = "Bonobot"
MFA_TOTP_TOLERANCE = 1  # a step of 30 seconds before and after: clocks differ
# Browsers give passkeys to https alone, and to localhost; there the library's own check is off.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = environment.read_text("BONOBOT_URL", "http://").startswith(
    "http://"
)
