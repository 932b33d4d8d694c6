"""The command `audit simulate`, and the policy and draft options of `agents policy`."""

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import InvalidInput, NotFound

if TYPE_CHECKING:
    from agents.policies.services import Entry, Owner, PolicySpec
    from agents.policies.shadow_mode import ShadowDraft
    from agents.policies.simulations import PolicySimulation, SimulationGroup

MAX_SECONDS = 300.0  # a person waits at the terminal and can stop it


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the policy options; what isn't given stays unchanged."""
    parser.add_argument(
        "--policy",
        metavar="FILE",
        help="JSON or YAML file with mode, allow, ask, and deny. -: standard input",
    )
    parser.add_argument(
        "--mode", choices=("none", "allowlist", "denylist", "all"), help="Policy mode"
    )
    for effect, effect_help in (
        ("allow", "Tool to allow"),
        ("ask", "Tool that requires approval"),
        ("deny", "Tool to deny"),
    ):
        parser.add_argument(
            f"--{effect}",
            action="append",
            metavar="TOOL",
            help=f"{effect_help}: name, glob, or JSON rule with a condition. Repeatable; "
            "replaces the current list",
        )


def handle_organization_policy(cli: CommandContext, options: argparse.Namespace) -> None:
    """Show or change the organization's policy and its draft; raises `InvalidInput`."""
    from agents.policies.services import load_policy_spec, set_policy
    from agents.policies.shadow_mode import find_draft

    organization = Organization.objects.get(pk=cli.principal.organization_id)
    apply_draft_options(cli, organization, options)
    policy = None if options.shadow else collect_policy_options(organization, options)
    if policy is not None:
        set_policy(cli.principal, organization, policy)
        warn_about_missing_tools(cli, organization, policy)
    current_policy, draft = load_policy_spec(organization), find_draft(organization)
    cli.emit({**current_policy.as_dict(), "draft": draft.as_dict() if draft else None})
    cli.print_message(format_policy(current_policy))
    cli.print_message(
        "Deny and ask rules apply to every agent. "
        "Allow rules and the mode apply to calls without an agent."
    )
    show_draft(cli, organization, draft)


def warn_about_missing_tools(cli: CommandContext, owner: "Owner", policy: "PolicySpec") -> None:
    """Print a warning for each rule that names no tool."""
    from agents.calls.missing_tools import describe_missing_tool, list_missing_tools

    for name in list_missing_tools(owner, policy):
        cli.err.print(f"! {describe_missing_tool(name)}", markup=False)


def show_draft(cli: CommandContext, owner: "Owner", draft: "ShadowDraft | None") -> None:
    """Print the draft in shadow mode and how to simulate it."""
    if draft is not None:
        owner_option = f"--agent {owner.slug}" if isinstance(owner, Agent) else "--organization"
        cli.print_message(f"Draft in shadow mode since {draft.since:%Y-%m-%d %H:%M}:")
        cli.print_message(format_policy(draft.spec))
        cli.print_message(
            f"To show what it would have decided: bonobot audit simulate {owner_option} --shadow"
        )


def collect_policy_options(owner: "Owner", options: argparse.Namespace) -> "PolicySpec | None":
    """Return the policy in the options, or None; raises `InvalidInput`."""
    from agents.policies.services import EFFECTS, PolicySpec, load_policy_spec

    texts_by_effect = {effect: getattr(options, effect) for effect in EFFECTS}
    if not (options.policy or options.mode or any(texts_by_effect.values())):
        return None
    current_policy = (
        _read_policy_file(options.policy) if options.policy else load_policy_spec(owner)
    )
    lists = {
        effect: tuple(map(_parse_rule, texts)) if texts else current_policy.get_entries(effect)
        for effect, texts in texts_by_effect.items()
    }
    return PolicySpec(options.mode or current_policy.mode, **lists)


def apply_draft_options(cli: CommandContext, owner: "Owner", options: argparse.Namespace) -> None:
    """Create, enforce or delete the draft, as the options say."""
    from agents.policies.shadow_mode import delete_draft, enforce_draft, set_draft

    if options.shadow:
        policy = collect_policy_options(owner, options)
        if policy is None:
            raise InvalidInput(
                "No draft policy was specified.",
                code="no_policy",
                field="--shadow",
                remedy="Add --policy FILE, --mode, --allow, --ask, or --deny.",
            )
        set_draft(cli.principal, owner, policy)
    elif options.enforce:
        enforce_draft(cli.principal, owner)
    elif options.discard:
        delete_draft(cli.principal, owner)


def format_policy(policy: "PolicySpec") -> str:
    from agents.policies.services import EFFECTS, format_entries

    return "; ".join(
        [
            f"mode {policy.mode}",
            *(f"{effect} {format_entries(policy.get_entries(effect))}" for effect in EFFECTS),
        ]
    )


def _parse_rule(text: str) -> "Entry":
    """Parse a rule: a name or glob, or JSON with a tool and its condition."""
    from agents.policies.services import RuleSpec

    if not text.lstrip().startswith("{"):
        return text
    rule = parse_json_object(text, "--allow, --ask or --deny")
    tool, when = rule.get("tool"), rule.get("when")
    if set(rule) == {"tool", "when"} and isinstance(tool, str) and isinstance(when, dict):
        return RuleSpec(tool, when)
    raise InvalidInput(
        "A rule with a condition requires a tool and a condition.",
        field="--allow, --ask or --deny",
        remedy='Use the format {"tool": "mcp_bank_transfer", "when": {JSON Schema}}.',
    )


def parse_json_object(text: str, field: str) -> dict[str, Any]:
    """Parse a JSON object; raises `InvalidInput`."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    raise InvalidInput(
        "The value isn't a JSON object.", field=field, remedy='Use the format {"name": "value"}.'
    )


def _read_policy_file(path: str) -> "PolicySpec":
    # REST's libraries would take a fifth of the start of every command.
    from agents.api.policies import PolicySerializer, build_policy_spec

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        serializer = PolicySerializer(data=yaml.safe_load(text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _build_file_error(path, str(error)) from error
    if not serializer.is_valid():
        name, errors = next(iter(serializer.errors.items()))
        raise _build_file_error(path, f"{name}: {_get_first_error(errors)}")
    return build_policy_spec(serializer.validated_data)


def _get_first_error(errors: Any) -> Any:
    """Return the first message of a serializer's errors."""
    while isinstance(errors, dict | list) and errors:
        errors = next(iter(errors.values())) if isinstance(errors, dict) else errors[0]
    return errors


def _build_file_error(path: str, reason: str) -> InvalidInput:
    return InvalidInput(
        f"The policy file {path!r} can't be used: {reason}",
        code="unusable_file",
        field="--policy",
        remedy='Use the format {"mode": "allowlist", "allow": ["mcp_time_*"]}.',
    )


def _add_simulation_arguments(parser: argparse.ArgumentParser) -> None:
    from agents.policies.simulations import DEFAULT_DAYS, MAX_ROWS

    owners = parser.add_mutually_exclusive_group(required=True)
    owners.add_argument("--agent", metavar="SLUG", help="Use the calls and policy of this agent")
    owners.add_argument(
        "--organization", action="store_true", help="Use all calls and the organization's policy"
    )
    parser.add_argument(
        "--days",
        type=int,
        default=DEFAULT_DAYS,
        help=f"Number of past days (default: {DEFAULT_DAYS})",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=MAX_ROWS,
        help=f"Maximum number of audit entries (default: {MAX_ROWS})",
    )
    parser.add_argument(
        "--shadow",
        action="store_true",
        help="Use the recorded decisions of the draft in shadow mode",
    )
    add_policy_arguments(parser)


def _replay_audit(cli: CommandContext, options: argparse.Namespace) -> None:
    organization_id = cli.principal.organization_id
    owner: Owner = (
        Organization.objects.get(pk=organization_id)
        if options.organization
        else Agent.objects.get_or_404(organization_id, slug=options.agent)
    )
    with cli.show_spinner("Reading the audit log…"):
        simulation = _simulate_policy(cli, owner, options)
    cli.emit(simulation.as_dict(), _render_simulation(simulation))
    for line in _summarize_simulation(simulation):
        cli.print_message(line)


def _simulate_policy(
    cli: CommandContext, owner: "Owner", options: argparse.Namespace
) -> "PolicySimulation":
    from agents.policies.shadow_mode import format_owner_option
    from agents.policies.simulations import simulate_policy, simulate_shadow_policy

    limits = {"max_rows": max(options.rows, 1), "max_seconds": MAX_SECONDS}
    policy = collect_policy_options(owner, options)
    if options.shadow:
        simulation = simulate_shadow_policy(cli.principal, owner, **limits)
        if simulation is None:
            raise NotFound(
                f"The policy of `{owner.slug}` has no draft in shadow mode.",
                code="no_draft",
                field="--shadow",
                remedy="Create one first: "
                f"bonobot agents policy {format_owner_option(owner)} --shadow --mode …",
            )
        return simulation
    if policy is None:
        raise InvalidInput(
            "No policy to simulate was specified.",
            code="no_policy",
            field="--policy",
            remedy="Add --policy FILE, --mode, --allow, --ask, --deny, or --shadow.",
        )
    return simulate_policy(cli.principal, owner, policy, days=options.days, **limits)


def _render_simulation(simulation: "PolicySimulation") -> Any:
    rows = [
        _build_row(group) for group in (*simulation.changed_groups, *simulation.undecidable_groups)
    ]
    empty = (
        "No decisions change."
        if simulation.rows
        else "No calls in this period, so there is nothing to compare."
    )
    columns = ("SERVER", "TOOL", "BEFORE", "AFTER", "CALLS", "RULE")
    return build_table(*columns, rows=rows, empty=empty)


def _build_row(group: "SimulationGroup") -> tuple[Any, ...]:
    server = group.server_name or "built-in"
    return (
        server,
        group.tool,
        group.before or "?",
        group.after or "undetermined",
        group.calls,
        group.rule,
    )


def _summarize_simulation(simulation: "PolicySimulation") -> list[str]:
    lines = [
        f"{format_count(simulation.calls, 'call')} since {simulation.since:%Y-%m-%d %H:%M}: "
        f"{simulation.changed} changed, {simulation.unchanged} unchanged, "
        f"{simulation.undecidable} undetermined, "
        f"{simulation.other_denials} denied for reasons other than rules."
    ]
    if simulation.already_changed:
        lines.append(
            f"{format_count(simulation.already_changed, 'call')} would be decided differently by "
            "the current policy than at that time."
        )
    if simulation.stopped and simulation.until:
        lines.append(
            f"Stopped because the limit for {simulation.stopped} was reached. Covered: the newest "
            f"{format_count(simulation.rows, 'entry', 'entries')}, back to "
            f"{simulation.until:%Y-%m-%d %H:%M}. "
            "Use fewer --days or more --rows."
        )
    return lines


# Added to the verbs of `audit`, which a lower layer defines.
AUDIT_VERBS = (
    CommandVerb(
        "simulate",
        "Simulate another policy on past calls",
        _replay_audit,
        arguments=(_add_simulation_arguments,),
        examples=(
            "audit simulate --agent demo --deny 'mcp_git_*'",
            "audit simulate --agent demo --days 30 --policy stricter.yaml --json",
            "audit simulate --agent demo --shadow",
            "audit simulate --organization --deny 'mcp_shell_*'",
        ),
    ),
)
