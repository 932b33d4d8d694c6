"""App configuration, label `tenancy`."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

EMAIL_BUILDERS = {
    "sign_in_changed": "account_emails.build_change_email",
    "reset_review": "password_reset.build_review_email",
    "second_factor_reset": "second_factor.build_second_factor_reset_email",
}


class AccountsConfig(AppConfig):
    """Users, organizations, roles and tokens."""

    name = "bonobot.accounts"
    label = "tenancy"
    verbose_name = _("Members and organizations")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the command line principal, emails, and signal handlers of second factors."""
        from django.apps import apps

        from bonobot.accounts.account_emails import LINK_DELAYS_MIN, EmailKind, register_email_kind
        from bonobot.core.cli.extension_points import command_principal
        from bonobot.core.extension_points import LazyFunction

        command_principal.register(
            LazyFunction("bonobot.accounts.cli.principals.build_command_principal")
        )
        for kind, path in EMAIL_BUILDERS.items():
            register_email_kind(kind, EmailKind(LazyFunction(f"bonobot.accounts.{path}")))
        build_reset_email = LazyFunction("bonobot.accounts.password_reset.build_reset_email")
        register_email_kind("password_reset_link", EmailKind(build_reset_email, LINK_DELAYS_MIN))
        if apps.is_installed("allauth.mfa"):  # not for commands that only read rows
            from allauth.mfa import signals  # models, which need the apps

            from bonobot.accounts import second_factor

            signals.authenticator_added.connect(second_factor.handle_factor_added)
            signals.authenticator_reset.connect(second_factor.handle_factor_added)
            signals.authenticator_removed.connect(second_factor.handle_factor_removed)
