"""The admin of notices: importing registers channels and the outbox."""

from bonobot.notices.admin import channels, outbox

__all__ = ["channels", "outbox"]
