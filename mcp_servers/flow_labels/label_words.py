"""Access to the word lists in `label_words.toml`, which describe tools."""

import tomllib
from pathlib import Path

from bonobot.core.process_cache import compute_once

FILE = Path(__file__).with_suffix(".toml")


@compute_once
def get_words(section: str, name: str) -> frozenset[str]:
    """Return one word list. Raises `KeyError` if it doesn't exist."""
    return _load_sections()[section][name]


@compute_once
def get_verb_actions(section: str) -> dict[str, str]:
    """Return the action (`read`, `change`, `send` …) of each verb in a section."""
    return {
        word: action
        for action, word_list in _load_sections()[section].items()
        for word in word_list
    }


@compute_once
def _load_sections() -> dict[str, dict[str, frozenset[str]]]:
    with FILE.open("rb") as file:
        data = tomllib.load(file)
    return {
        section: {name: frozenset(word_list.split()) for name, word_list in lists.items()}
        for section, lists in data.items()
    }
