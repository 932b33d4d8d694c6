"""Notice: something that a person should know, though nothing is refused because of it."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Notice:
    """A stable code, a sentence, and the field that it is about."""

    code: str
    detail: str
    field: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return what is shown, without the members that are empty."""
        return {name: text for name, text in asdict(self).items() if text}
