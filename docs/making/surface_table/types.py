"""Feature, Area."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """Something that can be done, and its names; `why` says why one of the three has none."""

    what: str
    admin: str = ""  # separated by spaces
    rest: str = ""  # separated by spaces
    cli: str = ""  # separated by commas, since verbs have their group before them
    why: str = ""

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the names by surface."""
        verbs = tuple(verb.strip() for verb in self.cli.split(",") if verb.strip())
        return {"admin": tuple(self.admin.split()), "rest": tuple(self.rest.split()), "cli": verbs}


@dataclass(frozen=True)
class Area:
    """Features that belong together."""

    title: str
    features: tuple[Feature, ...]
