"""Declared operations of a stored server: added, changed and removed one at a time, audited.

Each is a change of the server's configuration like any other; what it makes of a tool is found at
the next discovery, and waits for approval there.
"""

import re
from collections.abc import Mapping
from typing import Any

from django.db import transaction

from bonobot.lib.problems import Conflict, Invalid, NotFound
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.configuration import shown_endpoint
from mcp_servers.models import Server
from mcp_servers.openapi.declaring import Declared, read_one
from mcp_servers.registration import alter
from mcp_servers.respecifying import respecified

_OWN = re.compile(r"endpoint_config\.declared\[\d+\]\.?")


def is_declared(server: Server) -> bool:
    """Tell whether a server's operations are declared by hand."""
    return "declared" in server.endpoint_config


def operations_of(server: Server) -> list[dict[str, Any]]:
    """Return what is declared by hand at a server, as it is kept; nothing where a document is."""
    return list(server.endpoint_config.get("declared", ()))


def operation_named(server: Server, name: str) -> dict[str, Any]:
    """Return one operation; raises `NotFound` (`unknown_operation`)."""
    for one in operations_of(server):
        if one["name"] == name:
            return one
    raise NotFound(
        say("{server!r} has no operation {name!r}.", server=server.name, name=name[:100]),
        code="unknown_operation",
        field="name",
        remedy="Its operations are listed with it.",
    )


def add_operation(principal: Principal, server: Server, said: Any) -> Declared:
    """Declare one more operation.

    Raises what `read_declared` and `alter` do, by its members, and `Conflict` (`not_declared`).
    """
    return _write(principal, server, said, replaces="")


def change_operation(principal: Principal, server: Server, name: str, said: Any) -> Declared:
    """Declare an operation anew; with another name it becomes another tool."""
    return _write(principal, server, said, replaces=name)


def remove_operation(principal: Principal, server: Server, name: str) -> None:
    """Remove an operation: it isn't called from then on. The last one stays (`last_operation`)."""
    principal.require(Action.MANAGE_SERVERS)
    with transaction.atomic():
        server.refresh_from_db()
        operation_named(server, name)
        left = [one for one in operations_of(server) if one["name"] != name]
        if not left:
            raise Invalid(
                say("{name!r} is the only operation of {server!r}.", name=name, server=server.name),
                code="last_operation",
                remedy="Remove the server instead, or switch it off.",
            )
        _keep(principal, server, left)


def _write(principal: Principal, server: Server, said: Any, *, replaces: str) -> Declared:
    principal.require(Action.MANAGE_SERVERS)
    with transaction.atomic():
        server.refresh_from_db()
        one = read_one(said, server.endpoint_config.get("url", ""))
        listed = operations_of(server)
        if not replaces and not is_declared(server):
            raise Conflict(
                say("The operations of {server!r} aren't declared by hand.", server=server.name),
                code="not_declared",
                remedy="Change its document, or declare operations at a server of their own.",
            )
        if replaces:
            place = listed.index(operation_named(server, replaces))
            listed[place] = one.as_dict()
        else:
            place = len(listed)
            listed.append(one.as_dict())
        try:
            _keep(principal, server, listed)
        except Invalid as problem:
            # The person speaks of one operation, not of a list.
            problem.field = _OWN.sub("", problem.field)
            raise
    return one


def _keep(principal: Principal, server: Server, declared: list[dict[str, Any]]) -> None:
    config: Mapping[str, Any] = {**shown_endpoint(server), "declared": declared}
    alter(principal, server, respecified(server, endpoint_config=config))
