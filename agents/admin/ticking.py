"""The ticks of a binding: which resources and prompts of a server an agent may use.

A tool is chosen or comes with everything; these are ticked one by one, all at once, or by patterns
over their URIs, templates and names. Nothing is ticked by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict
from django.utils.translation import gettext_lazy as _

from agents.choices import EVERYTHING, literal
from agents.models import Binding
from mcp_servers.models import Definition


@dataclass(frozen=True)
class Sort:
    """One sort of offers: how it is called, and the binding's list of what is ticked of it."""

    slug: str
    title: Any
    help: Any
    column: str
    kinds: tuple[str, ...]


SORTS = (
    Sort(
        "resource",
        _("Resources"),
        _(
            "URIs or patterns such as docs://*, one on each line. A pattern over URIs lets the "
            "variables of a template span several path segments there."
        ),
        "allowed_resources",
        (Definition.Kind.RESOURCE, Definition.Kind.RESOURCE_TEMPLATE),
    ),
    Sort(
        "prompt",
        _("Prompts"),
        _("Names or patterns such as review_*, one on each line."),
        "allowed_prompts",
        (Definition.Kind.PROMPT,),
    ),
)
KINDS = tuple(kind for sort in SORTS for kind in sort.kinds)


@dataclass(frozen=True)
class Ticks:
    """What a server offers of one sort, and the patterns that tick some of it."""

    sort: Sort
    rows: Sequence[Definition]
    patterns: Sequence[str]

    @property
    def everything(self) -> bool:
        """Tell whether all is ticked, also what comes later."""
        return EVERYTHING in self.patterns

    @property
    def names(self) -> frozenset[str]:
        """Return the names that are ticked one by one."""
        given = frozenset(self.patterns)
        return frozenset(
            row.name for row in self.rows if row.name in given or literal(row.name) in given
        )

    @property
    def further(self) -> str:
        """Return the patterns that are no single one's name, one on each line."""
        single = {literal(name) for name in self.names} | self.names | {EVERYTHING}
        return "\n".join(one for one in self.patterns if one not in single)


def ticks(
    rows: Iterable[Definition], binding: Binding | None, posted: QueryDict | None, key: str
) -> list[Ticks]:
    """Return the ticks of a server, as the form with this key said, or as they are kept."""
    found = list(rows)
    return [
        Ticks(
            sort,
            [row for row in found if row.kind in sort.kinds],
            _said(sort, posted, key) if said(posted, key) else _kept(sort, binding),
        )
        for sort in SORTS
    ]


def said(posted: QueryDict | None, key: str) -> bool:
    """Tell whether a form said anything about ticks."""
    return posted is not None and f"ticks-{key}" in posted


def columns(found: Iterable[Ticks]) -> Mapping[str, list[str]]:
    """Return what a binding keeps."""
    return {one.sort.column: list(dict.fromkeys(one.patterns)) for one in found}


def _said(sort: Sort, posted: QueryDict | None, key: str) -> list[str]:
    if posted is None:
        return []
    lines = posted.get(f"{sort.slug}-more-{key}", "").splitlines()
    further = [line.strip() for line in lines if line.strip()]
    if f"{sort.slug}-all-{key}" in posted:
        return [EVERYTHING, *further]
    return [*(literal(name) for name in posted.getlist(f"{sort.slug}-{key}")), *further]


def _kept(sort: Sort, binding: Binding | None) -> list[str]:
    return list(getattr(binding, sort.column)) if binding else []
