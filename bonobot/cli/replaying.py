"""`bonobot audit replay`, and the draft of `bonobot agents policy` (FEATURES X7)."""

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from agents.api.policies import PolicyShape, text_in
from agents.drafts import Draft, discard_draft, draft_of, enforce_draft, named, set_draft
from agents.models import Agent
from agents.replay import DAYS, MOST_ROWS, Group, Replay, replay, shadowed
from agents.tool_policies import (
    EFFECTS,
    Entry,
    Owner,
    PolicyText,
    RuleText,
    policy_text,
    said,
    set_policy,
)
from bonobot.cli.group import Cli, Verb, table
from bonobot.lib.problems import Invalid, NotFound
from bonobot.tenancy.models import Organization

MOST_S = 300.0  # somebody waits at a terminal, and can stop it


def policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say a policy; what isn't given stays as it is."""
    parser.add_argument(
        "--policy", metavar="FILE", help="mode, allow, ask and deny as JSON or YAML; -: from stdin"
    )
    parser.add_argument("--mode", choices=("none", "allowlist", "denylist", "all"))
    parser.add_argument("--allow", action="append", metavar="TOOL", help="a name or glob")
    parser.add_argument("--ask", action="append", metavar="TOOL", help="wants a person's yes")
    parser.add_argument("--deny", action="append", metavar="TOOL", help="a name or glob")


def own_policy(cli: Cli, options: argparse.Namespace) -> None:
    """Show or change the organization's own policy and its draft; raises `Invalid`."""
    own = Organization.objects.get(pk=cli.principal.organization_id)
    drafted(cli, own, options)
    text = None if options.shadow else wanted(own, options)
    if text is not None:
        set_policy(cli.principal, own, text)
    now, draft = policy_text(own), draft_of(own)
    cli.emit({**now.as_dict(), "draft": draft.as_dict() if draft else None})
    cli.say(in_a_line(now))
    cli.say("What it denies or asks about holds for every agent; the rest without an agent.")
    say_draft(cli, own, draft)


def say_draft(cli: Cli, owner: Owner, draft: Draft | None) -> None:
    """Say what runs in the shadow, and how to see what it would have decided."""
    if draft is not None:
        whose = f"--agent {owner.slug}" if isinstance(owner, Agent) else "--organization"
        cli.say(f"In its shadow since {draft.since:%Y-%m-%d %H:%M}:")
        cli.say(in_a_line(draft.text))
        cli.say(f"What it would have decided: bonobot audit replay {whose} --shadow")


def wanted(agent: Owner, options: argparse.Namespace) -> PolicyText | None:
    """Return the policy that the options say, None where they say none; raises `Invalid`."""
    given = {effect: getattr(options, effect) for effect in EFFECTS}
    if not (options.policy or options.mode or any(given.values())):
        return None
    now = _read(options.policy) if options.policy else policy_text(agent)
    lists = {
        effect: tuple(map(_rule, new)) if new else now.entries(effect)
        for effect, new in given.items()
    }
    return PolicyText(options.mode or now.mode, **lists)


def drafted(cli: Cli, agent: Owner, options: argparse.Namespace) -> None:
    """Do what the options say about the draft."""
    if options.shadow:
        text = wanted(agent, options)
        if text is None:
            raise Invalid(
                "Nothing says what is to run in the shadow.",
                code="no_policy",
                field="--shadow",
                remedy="Add --policy FILE, or --mode, --allow, --ask or --deny.",
            )
        set_draft(cli.principal, agent, text)
    elif options.enforce:
        enforce_draft(cli.principal, agent)
    elif options.discard:
        discard_draft(cli.principal, agent)


def in_a_line(text: PolicyText) -> str:
    """Return a policy in one line."""
    return "; ".join([f"mode {text.mode}", *(f"{e} {said(text.entries(e))}" for e in EFFECTS)])


def _rule(text: str) -> Entry:
    """Return a rule as it is typed: a name or glob, or JSON of one with its condition."""
    if not text.lstrip().startswith("{"):
        return text
    given = json_object(text, "--allow, --ask or --deny")
    tool, when = given.get("tool"), given.get("when")
    if set(given) == {"tool", "when"} and isinstance(tool, str) and isinstance(when, dict):
        return RuleText(tool, when)
    raise Invalid(
        "A rule with a condition needs a tool and its condition.",
        field="--allow, --ask or --deny",
        remedy='Write {"tool": "mcp_bank_transfer", "when": {JSON Schema over the arguments}}.',
    )


def json_object(text: str, field: str) -> dict[str, Any]:
    """Return the JSON object that was typed; raises `Invalid`."""
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    raise Invalid("That is not a JSON object.", field=field, remedy='Write {"name": "value"}.')


def _read(path: str) -> PolicyText:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        shape = PolicyShape(data=yaml.safe_load(text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _unusable(path, str(error)) from error
    if not shape.is_valid():
        name, faults = next(iter(shape.errors.items()))
        raise _unusable(path, f"{name}: {_first(faults)}")
    return text_in(shape.validated_data)


def _first(faults: Any) -> Any:
    """Return the first sentence of what a shape found wrong."""
    while isinstance(faults, dict | list) and faults:
        faults = next(iter(faults.values())) if isinstance(faults, dict) else faults[0]
    return faults


def _unusable(path: str, why: str) -> Invalid:
    return Invalid(
        f"{path!r} can't be used: {why}",
        code="unusable_file",
        field="--policy",
        remedy='Write it like {"mode": "allowlist", "allow": ["mcp_time_*"]}.',
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--agent", metavar="SLUG", help="whose calls and policy")
    whose.add_argument(
        "--organization", action="store_true", help="all calls, and the organization's own policy"
    )
    parser.add_argument("--days", type=int, default=DAYS, help=f"default: {DAYS}")
    parser.add_argument(
        "--rows", type=int, default=MOST_ROWS, help=f"at most so many (default: {MOST_ROWS})"
    )
    parser.add_argument(
        "--shadow", action="store_true", help="what the draft has recorded since it stands"
    )
    policy_arguments(parser)


def _replay(cli: Cli, options: argparse.Namespace) -> None:
    organization_id = cli.principal.organization_id
    owner: Owner = (
        Organization.objects.get(pk=organization_id)
        if options.organization
        else Agent.objects.get_or_404(organization_id, slug=options.agent)
    )
    with cli.waiting("Reading the audit …"):
        found = _found(cli, owner, options)
    cli.emit(found.as_dict(), _drawn(found))
    for line in _told(found):
        cli.say(line)


def _found(cli: Cli, agent: Owner, options: argparse.Namespace) -> Replay:
    bounds = {"most_rows": max(options.rows, 1), "most_s": MOST_S}
    text = wanted(agent, options)
    if options.shadow:
        found = shadowed(cli.principal, agent, **bounds)
        if found is None:
            raise NotFound(
                f"Nothing runs in the shadow of the policy of `{agent.slug}`.",
                code="no_draft",
                field="--shadow",
                remedy=f"bonobot agents policy {named(agent)} --shadow --mode …",
            )
        return found
    if text is None:
        raise Invalid(
            "Nothing says which policy to try.",
            code="no_policy",
            field="--policy",
            remedy="Add --policy FILE, or --mode, --allow, --ask or --deny; or --shadow.",
        )
    return replay(cli.principal, agent, text, days=options.days, **bounds)


def _drawn(found: Replay) -> Any:
    rows = [_row(group) for group in (*found.flips, *found.unsure)]
    empty = "Nothing flips." if found.rows else "No call was made in this time."
    columns = ("SERVER", "TOOL", "BEFORE", "AFTER", "CALLS", "RULE")
    return table(*columns, rows=rows, empty=empty)


def _row(group: Group) -> tuple[Any, ...]:
    server = group.server_name or "built-in"
    return (
        server,
        group.tool,
        group.before or "?",
        group.after or "undecidable",
        group.calls,
        group.rule,
    )


def _told(found: Replay) -> list[str]:
    lines = [
        f"{found.calls} calls since {found.since:%Y-%m-%d %H:%M}: {found.flipped} flip, "
        f"{found.same} stay, {found.undecidable} undecidable, "
        f"{found.elsewhere} refused by something else than rules."
    ]
    if found.otherwise:
        lines.append(f"{found.otherwise} were decided in another way then than they would be now.")
    if found.stopped and found.until:
        lines.append(
            f"Stopped at its limit of {found.stopped}: these are the first (newest) {found.rows} "
            f"rows, back to {found.until:%Y-%m-%d %H:%M}. Give fewer --days, or more --rows."
        )
    return lines


REPLAY = Verb(
    "replay",
    "Say what another policy would have decided about past calls.",
    _replay,
    _arguments,
    (
        "audit replay --agent demo --deny 'mcp_git_*'",
        "audit replay --agent demo --days 30 --policy stricter.yaml --json",
        "audit replay --agent demo --shadow",
        "audit replay --organization --deny 'mcp_shell_*'",
    ),
)
