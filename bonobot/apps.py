"""App configuration of the project."""

from django.apps import AppConfig


class BonobotConfig(AppConfig):
    """The project's app: commands, checks, Celery and tracing."""

    name = "bonobot"
    verbose_name = "Bonobot"

    def ready(self) -> None:
        """Register system checks and command groups; start tracing if configured.

        The Celery application is created here, so that `@shared_task` finds its broker in every
        Django process that sends jobs. Commands that only read rows and child processes without
        Django don't load it.
        """
        from django.apps import apps
        from django.conf import settings

        from bonobot import __version__, checks  # noqa: F401 - importing registers
        from bonobot.core.cli.extension_points import readiness_check
        from bonobot.core.extension_points import LazyFunction
        from bonobot.management.command_groups import register_command_groups

        if apps.is_installed("django_celery_beat"):
            from bonobot import celery  # noqa: F401 - importing creates the application

        register_command_groups()

        readiness_check.register(
            LazyFunction("bonobot.monitoring.database_state.find_readiness_problem")
        )

        if settings.BONOBOT_TRACES:
            from bonobot.core.telemetry import tracing

            tracing.start_tracing(settings.BONOBOT_TRACES, __version__)
        if settings.BONOBOT_OTLP_METRICS:
            from bonobot.core.telemetry import mcp_operations

            mcp_operations.start_metrics(settings.BONOBOT_OTLP_METRICS, __version__)
