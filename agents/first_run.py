"""The first-run steps of an organization: progress, skip and close.

Whether a step is done is derived from existing rows, however they were created. `FirstRun`
only stores which steps were skipped and whether the checklist was closed. Skipped steps can be
resumed.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.llm.interface import ToolSpec
from agents.llm.offline.choose_tool import (
    SAMPLE_TEXT,
    build_real_arguments,
    choose_tools,
    list_changing_verbs,
)
from bonobot.accounts.models import FirstRun, Membership, Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.ledger.models import AuditRow
from bonobot.notifications.models import Notification
from mcp_servers.flow_labels.tool_risk import ToolRisk, find_tool_risk, is_declared_read_only
from mcp_servers.models import Definition

# (slug, title, description), in order.
STEPS = (
    ("account", _("Create your account"), _("The owner of the organization.")),
    (
        "connect",
        _("Add a server"),
        _("Bonobot lists its tools immediately. You approve them before anything can be called."),
    ),
    (
        "ask",
        _("Make the first governed call"),
        _("Each call is decided by a policy, limited by a budget, and recorded in the audit log."),
    ),
)
# The first step of an organization that a platform administrator created.
ADD_MEMBER = ("account", _("Add a member"), _("The organization has no members yet."))
SLUGS = tuple(slug for slug, _title, _description in STEPS)
MAX_TOOLS = 50
# Questions as people ask them, for tools that answer them.
QUESTIONS = ("What time is it in Asia/Tokyo?",)


@dataclass(frozen=True)
class FirstRunStep:
    """A step, and whether it is done or was skipped."""

    slug: str
    title: Any
    description: Any
    done: bool
    skipped: bool

    @property
    def is_finished(self) -> bool:
        """Return whether the step is done or skipped."""
        return self.done or self.skipped


@dataclass(frozen=True)
class FirstRunProgress:
    """An organization's progress; `undelivered` notifications failed in the last day."""

    steps: tuple[FirstRunStep, ...]
    closed: bool
    undelivered: int

    @property
    def next(self) -> FirstRunStep | None:
        """The first open step."""
        return next((step for step in self.steps if not step.is_finished), None)

    @property
    def is_called(self) -> bool:
        """Return whether a call succeeded."""
        return any(step.slug == "ask" and step.done for step in self.steps)

    @property
    def has_skipped_steps(self) -> bool:
        """Return whether a step was skipped and isn't done."""
        return any(step.skipped and not step.done for step in self.steps)

    @property
    def is_shown(self) -> bool:
        """Return whether the dashboard shows the checklist."""
        return self.next is not None and not self.closed

    @property
    def finished_count(self) -> int:
        """The number of steps that are done or skipped."""
        return sum(step.is_finished for step in self.steps)


def load_first_run_progress(organization_id: UUID) -> FirstRunProgress:
    """Return an organization's progress (one query)."""
    in_organization = {"organization_id": organization_id}
    failed_notifications = (
        Notification.objects.filter(**in_organization)
        .given_up()
        .order_by()
        .values("organization_id")
    )
    [(undelivered, skipped, closed_at, has_members, *done)] = Organization.objects.filter(
        pk=organization_id
    ).values_list(
        Coalesce(Subquery(failed_notifications.annotate(n=Count("pk")).values("n")), 0),
        "first_run__skipped",
        "first_run__closed_at",
        Exists(Membership.objects.filter(**in_organization)),
        Exists(Definition.objects.filter(**in_organization).exclude(pinned_digest="")),
        Exists(
            AuditRow.objects.filter(
                **in_organization, outcome=AuditRow.Outcome.OK, tool_name__gt=""
            )
        ),
    )
    steps = (
        FirstRunStep(
            slug,
            title=title,
            description=description,
            done=is_done,
            skipped=slug in (skipped or ()),
        )
        for (slug, title, description), is_done in zip(
            STEPS if has_members else (ADD_MEMBER, *STEPS[1:]), (has_members, *done), strict=True
        )
    )
    return FirstRunProgress(tuple(steps), closed_at is not None, undelivered)


def set_step_skipped(principal: Principal, slug: str, *, is_skipped: bool = True) -> None:
    """Skip or resume a step; raises `Forbidden`, `InvalidInput`."""
    if slug not in SLUGS:
        remedy = format_message("Use one of: {values}.", values=", ".join(SLUGS))
        raise InvalidInput(
            format_message("Unknown step {slug!r}.", slug=slug), field="step", remedy=remedy
        )
    row = _ensure_first_run(principal)
    row.skipped = [
        step_slug
        for step_slug in SLUGS
        if (is_skipped if step_slug == slug else step_slug in row.skipped)
    ]
    row.save(update_fields=["skipped"])


def set_first_run_closed(principal: Principal, *, is_closed: bool = True) -> None:
    """Hide the checklist from the dashboard, or show it again."""
    row = _ensure_first_run(principal)
    row.closed_at = timezone.now() if is_closed else None
    row.save(update_fields=["closed_at"])


def _ensure_first_run(principal: Principal) -> FirstRun:
    principal.require(Action.MANAGE_SERVERS)
    row, _made = FirstRun.objects.get_or_create(organization_id=principal.organization_id)
    return row


def build_example_message(organization_id: UUID, server_ids: Iterable[UUID]) -> str:
    """Return a message with a call that can succeed: of an approved tool, and with real values.

    The tool is one of the servers and changes nothing. Without one, the message asks for the tools.
    """
    rows = Definition.objects.for_organization(organization_id).callable().tools()
    rows = rows.filter(server__in=server_ids, server__enabled=True)
    tools = rows.order_by("pinned_at", "name")[:MAX_TOOLS]
    specs = [_build_spec(tool) for tool in tools]
    examples = [
        (_rank(tool, text), text)
        for tool, spec in zip(tools, specs, strict=True)
        if _is_harmless(tool, spec) and (text := _build_example(spec, specs))
    ]
    return min(examples)[1] if examples else _t("What can you do?")


def _is_harmless(tool: Definition, spec: ToolSpec) -> bool:
    if is_declared_read_only(tool.payload):
        return True
    risk = find_tool_risk((), tool.payload)
    return risk != ToolRisk.DESTRUCTIVE and not list_changing_verbs(spec)


def _rank(tool: Definition, text: str) -> tuple[bool, bool, int]:
    """Return the order: questions, then tools that only read, then those with few arguments."""
    required = tool.input_schema.get("required") or ()
    return text not in QUESTIONS, not is_declared_read_only(tool.payload), len(required)


def _build_spec(tool: Definition) -> ToolSpec:
    return ToolSpec(tool.name, tool.description, tool.input_schema)


def _build_example(tool: ToolSpec, tools: Sequence[ToolSpec]) -> str:
    """Return a sentence with each required argument; blank if one has no real value.

    It is a question, or made of the words of the tool's name or the name itself: the first with
    which the offline model, which reads words literally, calls exactly this tool.
    """
    arguments = build_real_arguments(tool)
    if arguments is None:
        return ""
    values = [f"{_split_name(name)} {_quote(value)}" for name, value in arguments.items()]
    details = f" with {_join_words(values)}" if values else ""
    words = capfirst(_split_name(tool.name))
    sentences = (*QUESTIONS, f"{words}{details}", f"Use {tool.name}{details}")
    return next((text for text in sentences if _calls_only(tool, text, tools)), "")


def _calls_only(tool: ToolSpec, sentence: str, tools: Sequence[ToolSpec]) -> bool:
    choices = choose_tools(sentence, tools)
    return len(choices) == 1 and choices[0].tool == tool and not choices[0].missing


def _split_name(name: str) -> str:
    """Return the words of a name: `getIssue` and `get_issue` are "get issue"."""
    return " ".join(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-_]+", " ", name).split()).lower()


def _join_words(words: Sequence[str]) -> str:
    """Return "a", "a and b", or "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _quote(value: Any) -> str:
    """Return a value; texts in quotes, as the offline model reads other kinds without them."""
    return f'"{value}"' if value == SAMPLE_TEXT else str(value)
