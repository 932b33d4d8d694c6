"""Drafts of imports: the text and the choices of a preview, encrypted, for a few hours.

A draft belongs to one person in one organization. It is deleted when no server of it is left to
add, and by a task when it wasn't changed for `LIFETIME`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from bonobot.accounts.principals import Principal
from mcp_servers.import_export.import_plan import ImportChoices
from mcp_servers.models import ImportDraft

LIFETIME = timedelta(hours=4)
MAX_DRAFTS = 5  # of one person; the oldest ones are deleted


@dataclass(frozen=True, kw_only=True)
class DraftContent:
    """A pasted text and the choices for its servers, as in `ImportChoices`.

    `remaining` names the servers that are left to add after a first import (None: all);
    `is_attaching` is whether the agents of the text get their servers.
    """

    text: str = field(repr=False)
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    new_names: Mapping[str, str] = field(default_factory=dict)
    allow_private: Sequence[str] = ()
    chosen: Sequence[str] | None = None
    remaining: Sequence[str] | None = None
    is_attaching: bool = True

    def build_choices(self, scope_id: UUID | None) -> ImportChoices:
        return ImportChoices(
            values=self.values,
            allow_private=self.allow_private,
            chosen=self.chosen,
            new_names=self.new_names,
            scope_id=scope_id,
        )


def save_draft(
    principal: Principal, content: DraftContent, draft: ImportDraft | None = None
) -> ImportDraft:
    """Create a draft or replace the content of one, and return it."""
    if draft is not None:
        draft.content = asdict(content)  # type: ignore[assignment]  # what sealed fields take
        draft.save(update_fields=["content", "updated_at"])
        return draft
    drafts = _list_drafts(principal)
    old_ids = drafts.order_by("-updated_at").values_list("pk", flat=True)[MAX_DRAFTS - 1 :]
    drafts.filter(pk__in=list(old_ids)).delete()
    created: ImportDraft = ImportDraft.objects.create(
        organization_id=principal.organization_id,
        principal=_describe_owner(principal),
        content=asdict(content),
    )
    return created


def find_draft(principal: Principal, key: str) -> ImportDraft | None:
    """Return the unexpired draft of this person with this ID, or None."""
    try:
        draft_id = UUID(hex=key)
    except ValueError:
        return None
    row: ImportDraft | None = _list_drafts(principal).filter(pk=draft_id).first()
    return row


def load_content(draft: ImportDraft) -> DraftContent:
    """Return the decrypted content of a draft."""
    return DraftContent(**draft.content.open())


def prune_drafts() -> int:
    """Delete expired drafts; return how many."""
    return ImportDraft.objects.filter(updated_at__lt=timezone.now() - LIFETIME).delete()[0]


def _list_drafts(principal: Principal) -> Any:
    drafts = ImportDraft.objects.for_organization(principal.organization_id)
    return drafts.filter(
        principal=_describe_owner(principal), updated_at__gte=timezone.now() - LIFETIME
    )


def _describe_owner(principal: Principal) -> str:
    return f"{principal.kind}:{principal.id}"
