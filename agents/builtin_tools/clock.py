"""`current_time`: models don't know what day it is."""

from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.utils import timezone

from agents.builtin_tools.tool import BuiltinTool, Context
from bonobot.lib.problems import Invalid


async def _run(context: Context, arguments: dict[str, Any]) -> str:
    name = arguments.get("timezone", "UTC")
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(
            f"There is no time zone {name!r}.",
            code="invalid_arguments",
            field="timezone",
            remedy="Use an IANA name, such as `Europe/Berlin`.",
        ) from None
    return timezone.now().astimezone(zone).isoformat(timespec="seconds")


CURRENT_TIME = BuiltinTool(
    name="current_time",
    description="Tell the current date and time, in UTC or in a given IANA time zone.",
    input_schema={
        "type": "object",
        "properties": {
            "timezone": {
                "type": "string",
                "description": "IANA time zone name, such as Europe/Berlin. Default: UTC.",
            }
        },
        "additionalProperties": False,
    },
    run=_run,
)
