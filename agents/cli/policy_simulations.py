"""The command `audit simulate`."""

import argparse
from typing import TYPE_CHECKING, Any

from agents.cli.policies import POLICY_ARGUMENTS, collect_policy_options
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.core.cli.command_group import Alternatives, Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import InvalidInput, NotFound

if TYPE_CHECKING:
    from agents.policies.services import Owner
    from agents.policies.simulations import PolicySimulation, SimulationGroup

MAX_SECONDS = 300.0  # a person waits at the terminal and can stop it


def _add_size_arguments(parser: argparse.ArgumentParser) -> None:
    from agents.policies.simulations import DEFAULT_DAYS, MAX_ROWS

    days_help = f"Number of past days (default: {DEFAULT_DAYS})"
    parser.add_argument("--days", type=int, default=DEFAULT_DAYS, help=days_help)
    rows_help = f"Maximum number of audit entries (default: {MAX_ROWS})"
    parser.add_argument("--rows", type=int, default=MAX_ROWS, help=rows_help)


_SIMULATION_ARGUMENTS = (
    Alternatives(
        Argument("--agent SLUG", "Use the calls and policy of this agent"),
        Argument("--organization", "Use all calls and the organization's policy"),
        required=True,
    ),
    _add_size_arguments,
    Argument("--shadow", "Use the recorded decisions of the draft in shadow mode"),
    *POLICY_ARGUMENTS,
)


def _replay_audit(cli: CommandContext, options: argparse.Namespace) -> None:
    owner: Owner = (
        Organization.objects.get(pk=cli.principal.organization_id)
        if options.organization
        else cli.get_row(Agent, slug=options.agent)
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
        arguments=_SIMULATION_ARGUMENTS,
        examples=(
            "audit simulate --agent demo --deny 'mcp_git_*'",
            "audit simulate --agent demo --days 30 --policy stricter.yaml --json",
            "audit simulate --agent demo --shadow",
            "audit simulate --organization --deny 'mcp_shell_*'",
        ),
    ),
)
