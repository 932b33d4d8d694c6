"""A copy of PyPI's time server over stdio (2026-07-28), without the SDK.

It starts in a twentieth of the time; `test_stdio.py` compares the two. It uses only the standard
library.
"""

import json
import os
import sys
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

VERSION = "2026-07-28"
ZONE = os.environ.get("TZ", "UTC")
TIME_SCHEMA = {"type": "object", "required": ["timezone", "datetime", "day_of_week", "is_dst"]}
HINTS = {
    "readOnlyHint": True,
    "destructiveHint": False,
    "idempotentHint": True,
    "openWorldHint": False,
}


def zone(kind, examples):
    prefix = kind.removesuffix("timezone").capitalize()
    text = f"{prefix}IANA timezone name (e.g., {examples}). Use '{ZONE}' as local timezone if no "
    return {"type": "string", "description": f"{text}{kind} provided by the user."}


def tool(name, description, properties, output):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "name": name,
        "description": description,
        "inputSchema": schema,
        "outputSchema": output,
        "annotations": HINTS,
    }


TOOLS = [
    tool(
        "get_current_time",
        "Get current time in a specific timezone",
        {"timezone": zone("timezone", "'America/New_York', 'Europe/London'")},
        TIME_SCHEMA,
    ),
    tool(
        "convert_time",
        "Convert time between timezones",
        {
            "source_timezone": zone("source timezone", "'America/New_York', 'Europe/London'"),
            "time": {"type": "string", "description": "Time to convert in 24-hour format (HH:MM)"},
            "target_timezone": zone("target timezone", "'Asia/Tokyo', 'America/San_Francisco'"),
        },
        {"type": "object", "required": ["source", "target", "time_difference"]},
    ),
]


def describe_time(name, at):
    return {
        "timezone": name,
        "datetime": at.isoformat(timespec="seconds"),
        "day_of_week": at.strftime("%A"),
        "is_dst": bool(at.dst()),
    }


def run(name, arguments):
    if name == "get_current_time":
        return describe_time(arguments["timezone"], datetime.now(ZoneInfo(arguments["timezone"])))
    hours, minutes = map(int, arguments["time"].split(":"))
    now = datetime.now(ZoneInfo(arguments["source_timezone"]))
    source = now.replace(hour=hours, minute=minutes, second=0, microsecond=0)
    target = source.astimezone(ZoneInfo(arguments["target_timezone"]))
    difference = (target.utcoffset() - source.utcoffset()) / timedelta(hours=1)
    return {
        "source": describe_time(arguments["source_timezone"], source),
        "target": describe_time(arguments["target_timezone"], target),
        "time_difference": f"{difference:+.1f}h",
    }


def answer(method, params):
    if method == "server/discover":
        return {
            "supportedVersions": [VERSION],
            "capabilities": {"tools": {"listChanged": False}},
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "mcp-time", "version": "1"}},
        }
    if method == "tools/list":
        return {"tools": TOOLS, "ttlMs": 0, "cacheScope": "private"}
    if method == "tools/call":
        try:
            result = run(params["name"], params.get("arguments") or {})
        except (KeyError, ValueError) as fault:
            return {"content": [{"type": "text", "text": f"Invalid: {fault}"}], "isError": True}
        text = json.dumps(result, indent=2)
        return {
            "content": [{"type": "text", "text": text}],
            "structuredContent": result,
            "isError": False,
        }
    return None


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        found = answer(message["method"], message.get("params") or {})
        if found is None:
            body = {"error": {"code": -32601, "message": "Method not found"}}
        else:
            body = {"result": {"resultType": "complete", **found}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}) + "\n")
        sys.stdout.flush()
