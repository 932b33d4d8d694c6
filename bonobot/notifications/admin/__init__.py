"""The admin of notifications; importing it registers channels and the outbox."""

from bonobot.notifications.admin import channels, notifications

__all__ = ["channels", "notifications"]
