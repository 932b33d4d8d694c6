"""The commands `agents policy` and `agents explain`."""

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from agents.calls.explain import build_missing_tool_error, explain_call
from agents.calls.missing_tools import describe_missing_tool, list_missing_tools
from agents.calls.snapshots import get_snapshot_cache
from agents.cli.agents import get_agent
from agents.models import Agent, ToolPolicy
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
    set_draft,
)
from bonobot.accounts.models import Organization
from bonobot.core.cli.command_group import (
    Alternatives,
    Argument,
    CommandContext,
    CommandVerb,
    parse_json_object,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible

MARKS = {"allow": "✓", "ask": "?", "deny": "✗", "skip": "–"}


def _handle_policy(cli: CommandContext, options: argparse.Namespace) -> None:
    if options.organization:
        handle_organization_policy(cli, options)
        return
    agent = get_agent(cli, options.slug)
    apply_draft_options(cli, agent, options)
    new_policy = None if options.shadow else collect_policy_options(agent, options)
    if new_policy is not None:
        set_policy(cli.principal, agent, new_policy)
        warn_about_missing_tools(cli, agent, new_policy)
    current_policy, draft = load_policy_spec(agent), find_draft(agent)
    tools = get_snapshot_cache().load_current("agent", agent.pk).tools
    effective = [
        {
            "name": name,
            "allowed": tool.decision.allowed,
            "decision": tool.decision.verdict,
            "code": tool.decision.code,
        }
        for name, tool in sorted(tools.items())
    ]
    cli.emit(
        {
            **current_policy.as_dict(),
            "tools": effective,
            "draft": draft.as_dict() if draft else None,
        },
        build_table(
            "TOOL",
            "DECISION",
            "REASON",
            rows=[(t["name"], t["decision"], t["code"]) for t in effective],
            empty="This agent has no tools. Attach a server first.",
        ),
    )
    cli.print_message(format_policy(current_policy))
    show_draft(cli, agent, draft)


_RULE_HELP = "name, glob, or JSON rule with a condition. Repeatable; replaces the current list"
# What isn't given stays unchanged.
POLICY_ARGUMENTS = (
    Argument(
        "--policy FILE", "JSON or YAML file with mode, allow, ask, and deny. -: standard input"
    ),
    Argument("--mode", "Policy mode", choices=ToolPolicy.Mode.values),
    Argument("--allow TOOL", f"Tool to allow: {_RULE_HELP}", action="append"),
    Argument("--ask TOOL", f"Tool that requires approval: {_RULE_HELP}", action="append"),
    Argument("--deny TOOL", f"Tool to deny: {_RULE_HELP}", action="append"),
)


def handle_organization_policy(cli: CommandContext, options: argparse.Namespace) -> None:
    """Show or change the organization's policy and its draft; raises `InvalidInput`."""
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


def warn_about_missing_tools(cli: CommandContext, owner: Owner, policy: PolicySpec) -> None:
    """Print a warning for each rule that names no tool."""
    for name in list_missing_tools(owner, policy):
        cli.err.print(f"! {describe_missing_tool(name)}", markup=False)


def show_draft(cli: CommandContext, owner: Owner, draft: ShadowDraft | None) -> None:
    """Print the draft in shadow mode and how to simulate it."""
    if draft is not None:
        owner_option = f"--agent {owner.slug}" if isinstance(owner, Agent) else "--organization"
        cli.print_message(f"Draft in shadow mode since {draft.since:%Y-%m-%d %H:%M}:")
        cli.print_message(format_policy(draft.spec))
        cli.print_message(
            f"To show what it would have decided: bonobot audit simulate {owner_option} --shadow"
        )


def collect_policy_options(owner: Owner, options: argparse.Namespace) -> PolicySpec | None:
    """Return the policy in the options, or None; raises `InvalidInput`."""
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


def apply_draft_options(cli: CommandContext, owner: Owner, options: argparse.Namespace) -> None:
    """Create, enforce or delete the draft, as the options say."""
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


def format_policy(policy: PolicySpec) -> str:
    return "; ".join(
        [
            f"mode {policy.mode}",
            *(f"{effect} {format_entries(policy.get_entries(effect))}" for effect in EFFECTS),
        ]
    )


def _parse_rule(text: str) -> Entry:
    """Parse a rule: a name or glob, or JSON with a tool and its condition."""
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


def _read_policy_file(path: str) -> PolicySpec:
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


_EXPLAIN_ARGUMENTS = (
    Argument("SLUG", "Slug of the agent"),
    Argument("TOOL", "Name of the tool"),
    Argument("--arguments JSON", "Explain a call with these arguments, as a JSON object"),
)


def _explain_decision(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = get_agent(cli, options.slug)
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    tool = snapshot.find_tool(options.tool)
    if tool is None:
        raise build_missing_tool_error(cli.principal, snapshot, options.tool)
    text = options.arguments
    arguments = parse_json_object(text, "--arguments") if text else None
    explanation = explain_call(cli.principal, snapshot, tool, arguments)
    rows = [
        (
            stage["stage"].replace("_", " "),
            MARKS[stage["verdict"]],
            stage["rule"],
            stage["reason"],
            stage["changeable_by"] if stage["verdict"] in ("ask", "deny") else "",
        )
        for stage in explanation["stages"]
    ]
    columns = ("STAGE", "", "RULE", "REASON", "WHO CAN CHANGE IT")
    cli.emit(explanation, build_table(*columns, rows=rows, empty=""))
    if explanation["allowed"]:
        cli.print_message("Allowed.")
        return
    stage_name = explanation["first"].replace("_", " ")
    cli.print_message(
        make_visible(
            f"{explanation['code']} ({stage_name}): {explanation['reason']} {explanation['remedy']}"
        )
    )
    cli.print_message(f"Who can change it: {explanation['changeable_by']}.")


_SET_POLICY_ARGUMENTS = (
    Alternatives(
        Argument("SLUG", "Slug of the agent", nargs="?"),
        Argument("--organization", "The organization's policy, which applies to every agent"),
        required=True,
    ),
    *POLICY_ARGUMENTS,
    Alternatives(
        Argument(
            "--shadow",
            "Save as a draft in shadow mode: record its decisions without enforcing them",
        ),
        Argument("--enforce", "Make the draft the policy"),
        Argument("--discard", "Delete the draft"),
    ),
)

VERBS = (
    CommandVerb(
        "policy",
        "Show or change the policy of an agent or of the organization",
        _handle_policy,
        arguments=_SET_POLICY_ARGUMENTS,
        examples=(
            "agents policy demo",
            "agents policy demo --mode allowlist --allow 'mcp_time_*'",
            "agents policy --organization --deny 'mcp_shell_*'",
            """agents policy demo --ask '{"tool": "mcp_time_*", "when": {"required": ["zone"]}}'""",
            "agents policy demo --shadow --ask 'mcp_git_*'",
            "agents policy demo --enforce",
        ),
    ),
    CommandVerb(
        "explain",
        "Explain why an agent can or can't call a tool",
        _explain_decision,
        arguments=_EXPLAIN_ARGUMENTS,
        examples=(
            "agents explain demo mcp_git_git_commit",
            """agents explain demo mcp_time_get_current_time --arguments '{"timezone": "UTC"}'""",
        ),
    ),
)
