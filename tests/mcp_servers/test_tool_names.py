"""Names of tools are always valid and unambiguous."""

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.problems import Problem
from mcp_servers.tool_names import RuleTarget, build_tool_name, matches_tool_name, parse_rule_target

SENDABLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
slugs = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,38}[a-z0-9])?", fullmatch=True)
styles = st.sampled_from(["single", "double"])
own_names = st.text(max_size=200) | st.text(string.ascii_letters + "_-./", max_size=200)


def test_a_tool_is_named_by_its_server_and_its_own_name() -> None:
    assert build_tool_name("aws-s3", "list_buckets") == "mcp_aws_s3_list_buckets"
    assert build_tool_name("aws-s3", "list-buckets", "double") == "mcp__aws-s3__list-buckets"


def test_the_double_style_replaces_dots_and_the_single_style_hyphens_too() -> None:
    assert build_tool_name("a-b", "files.read-all", "double") == "mcp__a-b__files_read-all"
    assert build_tool_name("a-b", "files.read-all", "single") == "mcp_a_b_files_read_all"


@given(slugs, own_names, styles)
def test_every_tool_gets_a_stable_name_that_models_accept(
    slug: str, own_name: str, style: str
) -> None:
    name = build_tool_name(slug, own_name, style)
    assert SENDABLE.fullmatch(name)
    assert build_tool_name(slug, own_name, style) == name


@given(st.lists(st.tuples(slugs, own_names), unique=True, max_size=40), styles)
def test_no_two_tools_share_a_name(tools: list[tuple[str, str]], style: str) -> None:
    taken: set[str] = set()
    for slug, own_name in tools:
        name = build_tool_name(slug, own_name, style, frozenset(taken))
        assert name not in taken
        assert SENDABLE.fullmatch(name)
        taken.add(name)


def test_conflicting_and_truncated_names_end_in_a_digest() -> None:
    first = build_tool_name("a", "b_c")
    second = build_tool_name("a_b", "c", taken_names={first})
    assert re.fullmatch(r"mcp_a_b_c_[0-9a-f]{8}", second)
    long = build_tool_name("server", "x" * 100)
    assert len(long) == 64
    assert long != build_tool_name("server", "x" * 101)
    assert re.search(r"_[0-9a-f]{8}$", long)


def test_a_conflicting_digest_is_replaced_by_another() -> None:
    first = build_tool_name("a", "b_c")
    second = build_tool_name("a_b", "c", taken_names={first})
    assert build_tool_name("a_b", "c", taken_names={first, second}) not in {first, second}


SERVERS = ("github", "aws", "aws-s3", "time")


@pytest.mark.parametrize(
    ("pattern", "target"),
    [
        ("mcp_github_*", RuleTarget("github", "*")),
        ("mcp_github_create_issue", RuleTarget("github", "create_issue")),
        ("mcp_aws_s3_list_buckets", RuleTarget("aws-s3", "list_buckets")),
        ("mcp_aws_ec2_*", RuleTarget("aws", "ec2_*")),
        ("mcp_aws-s3_list-*", RuleTarget("aws-s3", "list-*")),
        ("mcp__github__create-issue", RuleTarget("github", "create-issue")),
        ("mcp__aws-s3__*", RuleTarget("aws-s3", "*")),
        ("mcp_git*", RuleTarget("github", "*")),
        ("mcp_github:default", RuleTarget("github", "")),
        ("mcp__aws-s3:default", RuleTarget("aws-s3", "")),
        ("mcp_*", RuleTarget("*", "*")),
        ("mcp__*", RuleTarget("*", "*")),
        ("*", RuleTarget("*", "*", builtin=True)),
        ("clock", RuleTarget("", "clock", builtin=True)),
        ("file_*", RuleTarget("", "file_*", builtin=True)),
        (" clock ", RuleTarget("", "clock", builtin=True)),
    ],
)
def test_a_rule_has_a_server_and_a_pattern_of_its_tool_names(
    pattern: str, target: RuleTarget
) -> None:
    assert parse_rule_target(pattern, SERVERS) == target


@pytest.mark.parametrize(
    ("pattern", "code", "choices"),
    [
        ("mcp_a*", "rule_ambiguous", ["aws", "aws-s3"]),
        ("mcp_*_delete", "rule_ambiguous", ["aws", "aws-s3", "github", "time"]),
        ("mcp_slack_*", "rule_unknown_server", ["aws", "aws-s3", "github", "time"]),
        ("mcp_github", "rule_unknown_server", ["aws", "aws-s3", "github", "time"]),
        ("mcp_slack:default", "rule_unknown_server", ["aws", "aws-s3", "github", "time"]),
        ("*delete*", "rule_ambiguous", None),
        ("m*", "rule_ambiguous", None),
        ("", "rule_empty", None),
    ],
)
def test_an_ambiguous_rule_lists_the_matching_servers(
    pattern: str, code: str, choices: list[str] | None
) -> None:
    with pytest.raises(Problem) as refusal:
        parse_rule_target(pattern, SERVERS)
    assert refusal.value.code == code
    assert refusal.value.extra.get("choices") == choices


def test_servers_with_conflicting_names_make_a_rule_ambiguous() -> None:
    with pytest.raises(Problem) as refusal:
        parse_rule_target("mcp_aws_s3_list", ["aws-s3", "aws_s3"])
    assert refusal.value.code == "rule_ambiguous"
    assert refusal.value.extra["choices"] == ["aws-s3", "aws_s3"]


def test_a_stored_name_resolves_to_exactly_its_tool() -> None:
    stored_names = {"mcp_aws_s3_x_0a1b2c3d": ("aws-s3", "x[1]*")}
    target = parse_rule_target("mcp_aws_s3_x_0a1b2c3d", SERVERS, stored_names)
    assert target.server == "aws-s3"
    assert matches_tool_name(target.pattern, "x[1]*")
    assert not matches_tool_name(target.pattern, "x1_more")


@given(
    st.sampled_from(SERVERS), own_names.filter(lambda name: name and not set(name) & set("*?[]"))
)
def test_the_name_that_models_see_works_as_a_rule(slug: str, own_name: str) -> None:
    name = build_tool_name(slug, own_name)
    target = parse_rule_target(name, SERVERS, {name: (slug, own_name)})
    assert target.server == slug
    assert matches_tool_name(target.pattern, own_name)


def test_a_pattern_matches_names_as_models_write_them() -> None:
    assert matches_tool_name("list_*", "list-buckets")
    assert matches_tool_name("list-*", "list-buckets")
    assert not matches_tool_name("list-*", "list_buckets")
