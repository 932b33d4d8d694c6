"""`list_resources` and `read_resource`: what is ticked for the agent, through the door."""

from typing import TYPE_CHECKING, Any

from agents.builtin_tools.tool import BuiltinTool, Context
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.sayings import say
from mcp_servers.labels import Label
from mcp_servers.uri_templates import LONGEST_URI

if TYPE_CHECKING:
    from agents.governance.snapshots import ServerFacts

SHOWN_AT_MOST = 200
DESCRIPTION_SHOWN = 200


class NotRead(Problem):
    """The server gave no resource; the code is that of the read."""

    code = "not_read"
    status = 502


async def _list(context: Context, arguments: dict[str, Any]) -> str:
    """Return the resources and templates that the agent may read, one on each line."""
    offers = context.snapshot.offers_of("resource", "resource_template")
    wanted = arguments.get("server")
    server = _server(context, wanted) if wanted else None
    lines = []
    for offer in offers:
        if not offer.decision.allowed or (server and offer.facts.server_id != server.id):
            continue
        slug = context.snapshot.servers[offer.facts.server_id].slug
        about = " – ".join(part for part in (offer.title, offer.description) if part)
        mime = offer.declaration.get("mimeType") or ""
        template = " (template: fill in its variables)" if "template" in offer.facts.kind else ""
        about = " ".join(about.split())[:DESCRIPTION_SHOWN]
        lines.append(f"{slug} {offer.name} {mime}{template} {about}".strip())
    shown = lines[:SHOWN_AT_MOST]
    if more := len(lines) - len(shown):
        shown.append(f"[{more} more: name a server to see fewer]")
    return "\n".join(shown) or "There are no resources to read."


async def _read(context: Context, arguments: dict[str, Any]) -> str:
    """Return a resource as text; the read is a call of its own."""
    server = _server(context, arguments["server"])
    outcome = await context.call("resources/read", server.id, arguments["uri"])
    if outcome.is_error:
        raise NotRead(outcome.text, code=outcome.code, remedy=outcome.remedy)
    return outcome.text


def _server(context: Context, name: str) -> "ServerFacts":
    found = next((one for one in context.snapshot.servers.values() if one.slug == name), None)
    if found is None:
        raise NotFound(
            say("There is no server {name!r}.", name=name),
            field="server",
            remedy="Take the name from `list_resources`: the first word of each line.",
        )
    return found


LIST_RESOURCES = BuiltinTool(
    name="list_resources",
    description=say(
        "List the resources that can be read: server, URI or URI template, and a word about each."
    ),
    input_schema={
        "type": "object",
        "properties": {"server": {"type": "string", "description": "Only of this server."}},
        "additionalProperties": False,
    },
    run=_list,
    of_resources=True,
    labels=(Label.REPEATABLE,),
)

READ_RESOURCE = BuiltinTool(
    name="read_resource",
    description=say("Read a resource by its server and URI, as `list_resources` names them."),
    input_schema={
        "type": "object",
        "properties": {
            "server": {"type": "string"},
            "uri": {"type": "string", "minLength": 1, "maxLength": LONGEST_URI},
        },
        "required": ["server", "uri"],
        "additionalProperties": False,
    },
    run=_read,
    of_resources=True,
    labels=(Label.REPEATABLE,),
)
