"""Commands and options that were renamed after version 0.1.

The command line still accepts the old names and prints the new ones to stderr, so that scripts keep
working. The next release removes this module.
"""

from collections.abc import Sequence

# The first words of a command line: a group, or a group and its verb.
RENAMED_COMMANDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("notices",): ("notifications",),
    ("questions",): ("elicitations",),
    ("agents", "clear-held"): ("agents", "clear-flow-labels"),
    ("agents", "grants"): ("agents", "session-approvals"),
    ("agents", "held"): ("agents", "flow-labels"),
    ("agents", "may-ask"): ("agents", "callable-agents"),
    ("agents", "revoke-grant"): ("agents", "revoke-session-approval"),
    ("audit", "heads"): ("audit", "checkpoint"),
    ("audit", "replay"): ("audit", "simulate"),
    ("first-run", "take-up"): ("first-run", "unskip"),
    ("tokens", "clear-held"): ("tokens", "clear-flow-labels"),
    ("tokens", "held"): ("tokens", "flow-labels"),
}

# The options of a command, by its new name.
RENAMED_OPTIONS: dict[tuple[str, ...], dict[str, str]] = {
    ("agents", "tools"): {"--on": "--enable", "--off": "--disable"},
    ("approvals", "deny"): {"--word": "--message"},
    ("audit", "verify"): {"--heads": "--checkpoints"},
    ("keys", "rotate"): {"--given": "--existing"},
    ("mcp", "add"): {"--confine": "--sandbox"},
    ("models", "add"): {"--falls-over": "--fallback-on", "--sees-images": "--image-input"},
    ("models", "set"): {
        "--falls-over": "--fallback-on",
        "--sees-images": "--image-input",
        "--no-sees-images": "--no-image-input",
    },
    ("notifications", "add"): {"--minimum": "--minimum-severity"},
    ("notifications", "set"): {"--minimum": "--minimum-severity"},
    ("skills", "set"): {"--on": "--enabled", "--off": "--no-enabled"},
    ("tokens", "list"): {"--given-by": "--authorized-by"},
    ("workflows", "set"): {"--on": "--enabled", "--off": "--no-enabled"},
    ("workflows", "set-trigger"): {"--on": "--enabled", "--off": "--no-enabled"},
}


def replace_renamed(command_line: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a command line with the new names, and a sentence for each old one in it."""
    words, notes = list(command_line), []
    for length in (1, 2):
        if new := RENAMED_COMMANDS.get(tuple(words[:length])):
            notes.append(_format_note(" ".join(words[:length]), " ".join(new)))
            words[:length] = new
    renamed = RENAMED_OPTIONS.get(tuple(words[:2]), {})
    for position, word in enumerate(words[2:], 2):
        option, equals, value = word.partition("=")
        if new_option := renamed.get(option):
            notes.append(_format_note(option, new_option))
            words[position] = f"{new_option}{equals}{value}"
    return words, notes


def _format_note(old: str, new: str) -> str:
    return f"`{old}` is now `{new}`. The next release removes the old name."
