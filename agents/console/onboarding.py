"""First-run steps: how far, skip, close.

What is done is seen from the rows that there are, so it is the same whoever did it and by whichever
way. Only what people say about it is kept (`FirstRun`): what they skip, and that they want no more
of it. Each step can be skipped, and taken up again.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from agents.models import Binding, ModelEndpoint, Session
from bonobot.accounts.models import FirstRun, Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.notifications.models import Notice
from mcp_servers.models import Definition, Server

# In their order: slug, title, what it is about.
STEPS = (
    (
        "connect",
        _("Connect a server"),
        _("Choose a preset, or paste a configuration: its tools are read at once."),
    ),
    (
        "approve",
        _("Read and approve its tools"),
        _("Nothing can be called before a person has read and approved it."),
    ),
    ("model", _("Add a model"), _("Any OpenAI-compatible address, or the built-in offline model.")),
    (
        "agent",
        _("Make an agent and give it the server"),
        _("Say what it is for, which servers it has and which tools it may use."),
    ),
    ("ask", _("Ask it something"), _("Every call it makes is decided, limited and in the audit.")),
)
SLUGS = tuple(slug for slug, _title, _about in STEPS)


@dataclass(frozen=True)
class OnboardingStep:
    """One step: whether it is done, and whether somebody skipped it."""

    slug: str
    title: Any
    about: Any
    done: bool
    skipped: bool

    @property
    def over(self) -> bool:
        """Tell whether there is nothing left to do about it."""
        return self.done or self.skipped


@dataclass(frozen=True)
class OnboardingProgress:
    """How far an organization has come; `untold` are the notices of the last day that failed."""

    steps: tuple[OnboardingStep, ...]
    closed: bool
    untold: int

    @property
    def next(self) -> OnboardingStep | None:
        """The first step that is left."""
        return next((step for step in self.steps if not step.over), None)

    @property
    def shown(self) -> bool:
        """Tell whether the dashboard speaks of it."""
        return self.next is not None and not self.closed

    def after(self, slug: str) -> OnboardingStep | None:
        """Return the step that follows one that is left, or else the first that is."""
        behind = self.steps[SLUGS.index(slug) + 1 :]
        return next((step for step in behind if not step.over), self.next)


def load_onboarding_progress(organization_id: UUID) -> OnboardingProgress:
    """Return how far an organization has come (one query: all is asked for together)."""
    mine = {"organization_id": organization_id}
    failed = Notice.objects.filter(**mine).given_up().order_by().values("organization_id")
    [(untold, skipped, closed_at, *done)] = Organization.objects.filter(
        pk=organization_id
    ).values_list(
        Coalesce(Subquery(failed.annotate(n=Count("pk")).values("n")), 0),
        "first_run__skipped",
        "first_run__closed_at",
        Exists(Server.objects.filter(**mine)),
        Exists(Definition.objects.filter(**mine).exclude(pinned_digest="")),
        Exists(ModelEndpoint.objects.filter(**mine)),
        Exists(Binding.objects.filter(**mine)),
        Exists(Session.objects.filter(**mine)),
    )
    steps = (
        OnboardingStep(slug, title, about, is_done, slug in (skipped or ()))
        for (slug, title, about), is_done in zip(STEPS, done, strict=True)
    )
    return OnboardingProgress(tuple(steps), closed_at is not None, untold)


def skip(principal: Principal, slug: str, *, skipped: bool = True) -> None:
    """Leave a step out, or take it up again; raises `Forbidden`, `Invalid`."""
    if slug not in SLUGS:
        remedy = format_message("Use one of: {slugs}.", slugs=", ".join(SLUGS))
        raise InvalidInput(
            format_message("There is no step {slug!r}.", slug=slug), field="step", remedy=remedy
        )
    row = _ensure_first_run(principal)
    row.skipped = [one for one in SLUGS if (skipped if one == slug else one in row.skipped)]
    row.save(update_fields=["skipped"])


def close(principal: Principal, *, closed: bool = True) -> None:
    """Take the first steps off the dashboard, or put them back."""
    row = _ensure_first_run(principal)
    row.closed_at = timezone.now() if closed else None
    row.save(update_fields=["closed_at"])


def _ensure_first_run(principal: Principal) -> FirstRun:
    principal.require(Action.MANAGE_SERVERS)
    row, _made = FirstRun.objects.get_or_create(organization_id=principal.organization_id)
    return row
