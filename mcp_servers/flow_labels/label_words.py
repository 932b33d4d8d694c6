"""Access to the word lists in `label_words.toml`, which describe tools."""

import tomllib
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_suffix(".toml")


@cache
def words(section: str, name: str) -> frozenset[str]:
    """Return one word list. Raises `KeyError` if it doesn't exist."""
    return _sections()[section][name]


@cache
def verbs(section: str) -> dict[str, str]:
    """Return the action (`read`, `change`, `send` …) of each verb in a section."""
    return {word: kind for kind, listed in _sections()[section].items() for word in listed}


@cache
def _sections() -> dict[str, dict[str, frozenset[str]]]:
    with FILE.open("rb") as file:
        found = tomllib.load(file)
    return {
        section: {name: frozenset(listed.split()) for name, listed in lists.items()}
        for section, lists in found.items()
    }
