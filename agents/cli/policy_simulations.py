"""The command `audit replay`, and the policy and draft options of `agents policy`."""

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from agents.api.policies import PolicySerializer, build_policy_text
from agents.models import Agent
from agents.policies.services import (
    EFFECTS,
    Entry,
    Owner,
    PolicySpec,
    RuleSpec,
    format_entries,
    load_policy_spec,
    set_policy,
)
from agents.policies.shadow_mode import (
    ShadowDraft,
    delete_draft,
    enforce_draft,
    find_draft,
    format_owner_option,
    set_draft,
)
from agents.policies.simulations import (
    DAYS,
    MOST_ROWS,
    PolicySimulation,
    SimulationGroup,
    replay,
    simulate_shadow_policy,
)
from bonobot.accounts.models import Organization
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.problems import InvalidInput, NotFound

MOST_S = 300.0  # a person waits at the terminal and can stop it


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the policy options; what isn't given stays unchanged."""
    parser.add_argument(
        "--policy", metavar="FILE", help="mode, allow, ask and deny as JSON or YAML; -: from stdin"
    )
    parser.add_argument("--mode", choices=("none", "allowlist", "denylist", "all"))
    parser.add_argument("--allow", action="append", metavar="TOOL", help="a name or glob")
    parser.add_argument("--ask", action="append", metavar="TOOL", help="wants a person's yes")
    parser.add_argument("--deny", action="append", metavar="TOOL", help="a name or glob")


def handle_organization_policy(cli: CommandContext, options: argparse.Namespace) -> None:
    """Show or change the organization's policy and its draft; raises `InvalidInput`."""
    own = Organization.objects.get(pk=cli.principal.organization_id)
    apply_draft_options(cli, own, options)
    text = None if options.shadow else collect_policy_options(own, options)
    if text is not None:
        set_policy(cli.principal, own, text)
    now, draft = load_policy_spec(own), find_draft(own)
    cli.emit({**now.as_dict(), "draft": draft.as_dict() if draft else None})
    cli.say(format_policy(now))
    cli.say("What it denies or asks about holds for every agent; the rest without an agent.")
    show_draft(cli, own, draft)


def show_draft(cli: CommandContext, owner: Owner, draft: ShadowDraft | None) -> None:
    """Print the draft in shadow mode and how to simulate it."""
    if draft is not None:
        whose = f"--agent {owner.slug}" if isinstance(owner, Agent) else "--organization"
        cli.say(f"In its shadow since {draft.since:%Y-%m-%d %H:%M}:")
        cli.say(format_policy(draft.text))
        cli.say(f"What it would have decided: bonobot audit replay {whose} --shadow")


def collect_policy_options(agent: Owner, options: argparse.Namespace) -> PolicySpec | None:
    """Return the policy in the options, or None; raises `InvalidInput`."""
    given = {effect: getattr(options, effect) for effect in EFFECTS}
    if not (options.policy or options.mode or any(given.values())):
        return None
    now = _read(options.policy) if options.policy else load_policy_spec(agent)
    lists = {
        effect: tuple(map(_parse_rule, new)) if new else now.entries(effect)
        for effect, new in given.items()
    }
    return PolicySpec(options.mode or now.mode, **lists)


def apply_draft_options(cli: CommandContext, agent: Owner, options: argparse.Namespace) -> None:
    """Create, enforce or delete the draft, as the options say."""
    if options.shadow:
        text = collect_policy_options(agent, options)
        if text is None:
            raise InvalidInput(
                "Nothing says what is to run in the shadow.",
                code="no_policy",
                field="--shadow",
                remedy="Add --policy FILE, or --mode, --allow, --ask or --deny.",
            )
        set_draft(cli.principal, agent, text)
    elif options.enforce:
        enforce_draft(cli.principal, agent)
    elif options.discard:
        delete_draft(cli.principal, agent)


def format_policy(text: PolicySpec) -> str:
    """Format a policy as one line."""
    return "; ".join(
        [f"mode {text.mode}", *(f"{e} {format_entries(text.entries(e))}" for e in EFFECTS)]
    )


def _parse_rule(text: str) -> Entry:
    """Parse a rule: a name or glob, or JSON with a tool and its condition."""
    if not text.lstrip().startswith("{"):
        return text
    given = parse_json_object(text, "--allow, --ask or --deny")
    tool, when = given.get("tool"), given.get("when")
    if set(given) == {"tool", "when"} and isinstance(tool, str) and isinstance(when, dict):
        return RuleSpec(tool, when)
    raise InvalidInput(
        "A rule with a condition needs a tool and its condition.",
        field="--allow, --ask or --deny",
        remedy='Write {"tool": "mcp_bank_transfer", "when": {JSON Schema over the arguments}}.',
    )


def parse_json_object(text: str, field: str) -> dict[str, Any]:
    """Parse a JSON object; raises `InvalidInput`."""
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    raise InvalidInput("That is not a JSON object.", field=field, remedy='Write {"name": "value"}.')


def _read(path: str) -> PolicySpec:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        shape = PolicySerializer(data=yaml.safe_load(text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _build_file_error(path, str(error)) from error
    if not shape.is_valid():
        name, faults = next(iter(shape.errors.items()))
        raise _build_file_error(path, f"{name}: {_get_first_error(faults)}")
    return build_policy_text(shape.validated_data)


def _get_first_error(faults: Any) -> Any:
    """Return the first message of a serializer's errors."""
    while isinstance(faults, dict | list) and faults:
        faults = next(iter(faults.values())) if isinstance(faults, dict) else faults[0]
    return faults


def _build_file_error(path: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{path!r} can't be used: {why}",
        code="unusable_file",
        field="--policy",
        remedy='Write it like {"mode": "allowlist", "allow": ["mcp_time_*"]}.',
    )


def _add_simulation_arguments(parser: argparse.ArgumentParser) -> None:
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
    add_policy_arguments(parser)


def _replay(cli: CommandContext, options: argparse.Namespace) -> None:
    organization_id = cli.principal.organization_id
    owner: Owner = (
        Organization.objects.get(pk=organization_id)
        if options.organization
        else Agent.objects.get_or_404(organization_id, slug=options.agent)
    )
    with cli.waiting("Reading the audit …"):
        found = _simulate_policy(cli, owner, options)
    cli.emit(found.as_dict(), _render_simulation(found))
    for line in _summarize_simulation(found):
        cli.say(line)


def _simulate_policy(
    cli: CommandContext, agent: Owner, options: argparse.Namespace
) -> PolicySimulation:
    bounds = {"most_rows": max(options.rows, 1), "most_s": MOST_S}
    text = collect_policy_options(agent, options)
    if options.shadow:
        found = simulate_shadow_policy(cli.principal, agent, **bounds)
        if found is None:
            raise NotFound(
                f"Nothing runs in the shadow of the policy of `{agent.slug}`.",
                code="no_draft",
                field="--shadow",
                remedy=f"bonobot agents policy {format_owner_option(agent)} --shadow --mode …",
            )
        return found
    if text is None:
        raise InvalidInput(
            "Nothing says which policy to try.",
            code="no_policy",
            field="--policy",
            remedy="Add --policy FILE, or --mode, --allow, --ask or --deny; or --shadow.",
        )
    return replay(cli.principal, agent, text, days=options.days, **bounds)


def _render_simulation(found: PolicySimulation) -> Any:
    rows = [_build_row(group) for group in (*found.flips, *found.unsure)]
    empty = "Nothing flips." if found.rows else "No call was made in this time."
    columns = ("SERVER", "TOOL", "BEFORE", "AFTER", "CALLS", "RULE")
    return build_table(*columns, rows=rows, empty=empty)


def _build_row(group: SimulationGroup) -> tuple[Any, ...]:
    server = group.server_name or "built-in"
    return (
        server,
        group.tool,
        group.before or "?",
        group.after or "undecidable",
        group.calls,
        group.rule,
    )


def _summarize_simulation(found: PolicySimulation) -> list[str]:
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


# Added to the verbs of `audit`, which a lower layer defines.
AUDIT_VERBS = (
    CommandVerb(
        "replay",
        "Say what another policy would have decided about past calls.",
        _replay,
        _add_simulation_arguments,
        (
            "audit replay --agent demo --deny 'mcp_git_*'",
            "audit replay --agent demo --days 30 --policy stricter.yaml --json",
            "audit replay --agent demo --shadow",
            "audit replay --organization --deny 'mcp_shell_*'",
        ),
    ),
)
