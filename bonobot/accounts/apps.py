"""App configuration, label `tenancy`."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class AccountsConfig(AppConfig):
    """Users, organizations, roles and tokens."""

    name = "bonobot.accounts"
    label = "tenancy"
    verbose_name = _("Members and organizations")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the command line principal and the signal handlers for second factors."""
        from django.apps import apps

        from bonobot.core.cli.command_environment import register_command_principal
        from bonobot.core.extension_points import LazyFunction

        register_command_principal(
            LazyFunction("bonobot.accounts.cli.principals.build_command_principal")
        )
        if apps.is_installed("allauth.mfa"):  # not for commands that only read rows
            from allauth.mfa import signals  # models, which need the apps

            from bonobot.accounts import second_factor

            signals.authenticator_added.connect(second_factor.handle_factor_added)
            signals.authenticator_reset.connect(second_factor.handle_factor_added)
            signals.authenticator_removed.connect(second_factor.handle_factor_removed)
