"""The filter of a list of definitions, also of the review of all that the list shows."""

from dataclasses import dataclass
from urllib.parse import urlencode

from django.db.models import Q
from django.http import QueryDict

from mcp_servers.models import Definition
from mcp_servers.models.definitions import DefinitionQuerySet

# Parameters of the review, whose URL can have the filters of the list of servers, too.
KINDS_PARAMETER, STATE_PARAMETER, TEXT_PARAMETER = (
    "definition_kind",
    "definition_state",
    "definition_q",
)
MAX_WORDS = 8


@dataclass(frozen=True)
class ListedDefinitions:
    """The kinds to show, a state of the list's filter, and words; "" for any."""

    kinds: tuple[str, ...] = tuple(Definition.Kind)
    state: str = ""
    text: str = ""

    @classmethod
    def from_parameters(cls, parameters: QueryDict) -> "ListedDefinitions":
        """Return the filter in the parameters of the review; everything without them."""
        chosen_kinds = parameters.getlist(KINDS_PARAMETER)
        kinds = tuple(kind for kind in Definition.Kind if kind in chosen_kinds)
        return cls(
            kinds or tuple(Definition.Kind),
            parameters.get(STATE_PARAMETER, ""),
            parameters.get(TEXT_PARAMETER, "").strip(),
        )

    def list_parameters(self) -> list[tuple[str, str]]:
        """Return the parameters of the review."""
        parameters = [(KINDS_PARAMETER, str(kind)) for kind in self.kinds]
        if self.state:
            parameters.append((STATE_PARAMETER, self.state))
        if self.text:
            parameters.append((TEXT_PARAMETER, self.text))
        return parameters

    @property
    def query(self) -> str:
        """Return the parameters of the review as a part of its URL."""
        return urlencode(self.list_parameters())

    def apply(self, definitions: DefinitionQuerySet) -> DefinitionQuerySet:
        """Keep the definitions that the filter shows."""
        definitions = definitions.filter(kind__in=self.kinds)
        apply_state = {
            "waiting": definitions.awaiting_review,
            "callable": definitions.callable,
            "off": lambda: definitions.filter(enabled=False),
            "rejected": definitions.rejected,
            "refused": lambda: definitions.exclude(fault=""),
            "gone": lambda: definitions.filter(present=False),
        }.get(self.state)
        definitions = apply_state() if apply_state else definitions
        for word in self.text.split()[:MAX_WORDS]:
            definitions = definitions.filter(
                Q(name__icontains=word) | Q(title__icontains=word) | Q(description__icontains=word)
            )
        return definitions
