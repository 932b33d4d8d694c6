"""The machine: Python, folders, and what stdio servers and agents are kept apart by."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions

from django.conf import settings
from django.db import DatabaseError

from agents.builtin_tools.sandbox import fault as fault_of_sandbox
from agents.governance.kits import SANDBOXED
from agents.models import Agent
from bonobot.checks import open_key_files
from bonobot.diagnosis.findings import Finding
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from bonobot.tenancy.models import Organization
from mcp_servers.connections.confinement import Kind, fault
from mcp_servers.connections.containment import NAMESPACE, TOOLS, containment
from mcp_servers.connections.environment_rules import without_exception
from mcp_servers.connections.sandbox import fault as fault_of_server_sandbox
from mcp_servers.models import Secret, Server
from mcp_servers.presets.folders import folder_rule

OLDEST_PYTHON = (3, 11)
STDIO_SANDBOX = "stdio sandbox"
BOXES: tuple[Kind, ...] = ("namespaces", "bubblewrap")


def python() -> Iterator[Finding]:
    """Look at the interpreter."""
    version = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        yield Finding("python", "failed", version, say("Use Python 3.11 or newer."))
    else:
        yield Finding("python", "ok", version)


def packages() -> Iterator[Finding]:
    """Look for others that bring a package of our names: which files are there is then chance."""
    found = packages_distributions()
    for name in ("agents", "mcp_servers"):
        for other in sorted(set(found.get(name, ())) - {"bonobot"}):
            fix = say(
                "Install Bonobot into an environment of its own, without {other}.", other=other
            )
            yield Finding(
                "packages",
                "failed",
                say("{other} brings a package {name!r}, too", other=other, name=name),
                fix,
            )


def folder() -> Iterator[Finding]:
    """Look at the folder for data and at the keys in it."""
    var = settings.BONOBOT_VAR
    if os.access(var, os.R_OK | os.W_OK | os.X_OK):
        free = shutil.disk_usage(var).free // 2**20
        yield Finding("folder", "ok", say("{var}, {free:,} MiB free", var=var, free=free))
    else:
        yield Finding(
            "folder",
            "failed",
            say("{var} isn't writable", var=var),
            say("Run `chown -R $USER {var}`.", var=var),
        )
    if readable := [path for path, _ in open_key_files()]:
        paths = " ".join(map(str, readable))
        yield Finding(
            "keys",
            "failed",
            say("others can read {paths}", paths=paths),
            say("Run `chmod 600 {paths}`.", paths=paths),
        )
    else:
        yield Finding("keys", "ok", say("readable by this user only"))


def launchers() -> Iterator[Finding]:
    """Look for the programs that start stdio servers."""
    for name in ("npx", "uvx", "node"):
        path = shutil.which(name)
        if path:
            yield Finding(name, "ok", path)
        else:
            package = "uv" if name == "uvx" else "Node.js"
            fix = say("Install {package}, if servers from there are wanted.", package=package)
            yield Finding(name, "warning", say("isn't installed"), fix)


def isolation() -> Iterator[Finding]:
    """Look for what keeps stdio servers apart from this machine."""
    way = containment()
    if way.name == NAMESPACE.name:
        yield Finding("isolation", "ok", way.promise)
        return
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if sys.platform != "linux":
        fix = say("Run servers that you don't trust on Linux.")
    elif missing:
        names = ", ".join(missing)
        fix = say("Install the package `util-linux`; missing are {names}.", names=names)
    else:
        fix = say("Allow this user, or this container, to make user namespaces.")
    yield Finding("isolation", "warning", way.promise, fix)


def boxes() -> Iterator[Finding]:
    """Look whether the boxes work that stdio servers can be asked to run in."""
    for kind in BOXES:
        problem = fault(kind, "none")
        if problem is None:
            yield Finding(kind, "ok", say("servers can be confined so, with and without network"))
            continue
        asked = _asked_for(kind)
        detail = (
            say(
                "{problem}; {asked} servers ask for it and can't be started",
                problem=problem,
                asked=asked,
            )
            if asked
            else problem
        )
        yield Finding(kind, "failed" if asked else "warning", str(detail), problem.remedy)


def sandbox_of_servers() -> Iterator[Finding]:
    """Look whether the sandbox works that stdio servers of organizations run in."""
    problem = fault_of_server_sandbox()
    if problem is None:
        yield Finding(
            STDIO_SANDBOX, "ok", say("stdio servers run in a sandbox of their organization")
        )
        return
    try:
        several = Organization.objects.count() > 1
    except DatabaseError:
        several = True  # which `database` tells
    if several:
        asked = _asked_for(Server.Confinement.SANDBOX)
        detail = say(
            "{problem}; {asked} stdio servers of organizations can't be started",
            problem=problem,
            asked=asked,
        )
        yield Finding(STDIO_SANDBOX, "failed" if asked else "warning", detail, problem.remedy)
    else:
        detail = say(
            "{problem}; stdio servers run as this user while there is one organization alone",
            problem=problem,
        )
        yield Finding(STDIO_SANDBOX, "warning", detail, problem.remedy)


def stdio_configuration() -> Iterator[Finding]:
    """Look for stdio servers that were given what no server may have: they aren't started."""
    try:
        for server in Server.objects.enabled().filter(transport_type=Server.Transport.STDIO):
            if refusal := _refused(server):
                yield Finding(
                    "stdio configuration",
                    "failed",
                    say(
                        "the server `{server}` isn't started: {refusal}",
                        server=visible(server.name, 100),
                        refusal=refusal,
                    ),
                    say("Correct its configuration, or allow the variable as an exception."),
                )
    except DatabaseError:
        return  # which `database` tells


def _refused(server: Server) -> str:
    """Return why a stdio server's stored configuration is refused, or ""."""
    secrets = server.secrets.filter(placement=Secret.Placement.ENV)
    names = secrets.values_list("name", flat=True)
    if refused := without_exception(names, server.env_exceptions):
        return say("`{names}` may not be set", names=", ".join(refused))
    folder = server.endpoint_config.get("cwd")
    if folder and (why := folder_rule(server.organization_id).refusal(folder)):
        return say("its folder may not be used: {why}", why=why)
    return ""


def sandbox() -> Iterator[Finding]:
    """Look whether the sandbox works that agents' own commands run in."""
    problem = fault_of_sandbox()
    if problem is None:
        yield Finding("sandbox", "ok", say("agents can be given a shell and git"))
        return
    try:
        kits = Agent.objects.enabled().values_list("builtin_tools", flat=True)
        asked = sum(not SANDBOXED.isdisjoint(one) for one in kits)
    except DatabaseError:
        asked = 0  # which `database` tells
    detail = say(
        "{problem}; {asked} agents have a shell or git, and can't use them",
        problem=problem,
        asked=asked,
    )
    if asked:
        yield Finding("sandbox", "failed", detail, problem.remedy)
    else:
        yield Finding("sandbox", "warning", str(problem), problem.remedy)


def _asked_for(kind: str) -> int:
    try:
        return int(Server.objects.enabled().filter(confinement=kind).count())
    except DatabaseError:
        return 0  # which `database` tells
