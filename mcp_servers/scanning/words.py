"""Words that an attack on a model cannot do without, as stems by concept and language (R16).

Stems are patterns for google-re2 over folded text: lower case, without accents, single spaces.
Scripts with spaces get a boundary before each stem; the others have none to look for.
"""

import tomllib
from importlib.resources import files
from typing import Final

from mcp_servers.scanning.patterns import ROOMY, Pattern

_DATA: Final = tomllib.loads(files(__package__).joinpath("words.toml").read_text(encoding="utf-8"))
STEMS: Final[dict[str, dict[str, str]]] = {
    concept: {
        language: "".join(line.strip() for line in said.splitlines())
        for language, said in languages.items()
    }
    for concept, languages in _DATA["stems"].items()
}
# What shows that Latin letters are not English.
SMALL_WORDS: Final = "".join(line.strip() for line in _DATA["small_words"].splitlines())
# Latin letters carry several languages at once; a boundary before a stem keeps it a beginning.
_SPACED: Final = frozenset({"en", "de", "fr", "es", "pt", "it", "nl", "pl", "ru", "uk", "tr"})
LATIN: Final = ("de", "fr", "es", "pt", "it", "nl", "pl", "tr")
CYRILLIC: Final = ("ru", "uk")
OTHERS: Final = ("ar", "he", "hi", "zh", "ja", "ko")


def pattern(concept: str, languages: tuple[str, ...]) -> Pattern:
    """Return a concept's stems in some languages as one pattern of linear time."""
    stems = STEMS[concept]
    spaced = [stems[one] for one in languages if one in _SPACED and one in stems]
    plain = [stems[one] for one in languages if one not in _SPACED and one in stems]
    parts = [rf"(?:^|[^\pL])(?:{'|'.join(spaced)})"] if spaced else []
    return Pattern("|".join((*parts, *plain)), ROOMY)
