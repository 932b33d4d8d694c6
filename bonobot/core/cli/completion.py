"""Shell completion scripts.

A script is generated once and contains only words: completing needs neither Python nor a database.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

SHELLS = ("bash", "zsh", "fish")
# Django's options of every command aren't completed.
_COMMON_OPTIONS = frozenset(
    (
        *("--version", "--verbosity", "--settings", "--pythonpath", "--traceback"),
        *("--no-color", "--force-color", "--skip-checks"),
    )
)


@dataclass(frozen=True)
class CompletionWord:
    """A word to complete: a command, a verb or an option, with its help."""

    text: str
    help: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompletionLevel:
    """The words after `path` (empty, a command, or a command and its verb)."""

    path: tuple[str, ...]
    words: tuple[CompletionWord, ...] = ()
    options: tuple[CompletionWord, ...] = field(default=())

    @property
    def key(self) -> str:
        return " ".join(self.path)


def build_levels(
    commands: Sequence[tuple[str, str, argparse.ArgumentParser]],
) -> tuple[CompletionLevel, ...]:
    """Return every level of (name, help, parser) commands."""
    top_level = CompletionLevel((), tuple(CompletionWord(name, text) for name, text, _ in commands))
    child_levels = [
        level for name, _, parser in commands for level in _iterate_levels((name,), parser)
    ]
    return (top_level, *child_levels)


def render_script(shell: str, program: str, levels: Sequence[CompletionLevel]) -> str:
    """Return the completion script of one of `SHELLS`."""
    return {"bash": _render_bash, "zsh": _render_zsh, "fish": _render_fish}[shell](program, levels)


def _iterate_levels(
    path: tuple[str, ...], parser: argparse.ArgumentParser
) -> Iterator[CompletionLevel]:
    words: list[CompletionWord] = []
    options: list[CompletionWord] = []
    subparsers: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            subparsers = dict(action.choices)
            words += [CompletionWord(c.dest, c.help or "") for c in action._choices_actions]
        elif action.option_strings:
            options += _iterate_option_words(action)
        elif action.choices:
            words += [CompletionWord(str(choice)) for choice in action.choices]
    yield CompletionLevel(path, tuple(words), tuple(options))
    for name, child in subparsers.items():
        yield from _iterate_levels((*path, name), child)


def _iterate_option_words(action: argparse.Action) -> Iterator[CompletionWord]:
    text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
    choices = tuple(str(choice) for choice in action.choices or ())
    for name in action.option_strings:
        if name.startswith("--") and name not in _COMMON_OPTIONS:
            yield CompletionWord(name, text, choices)


def _render_bash(program: str, levels: Sequence[CompletionLevel]) -> str:
    return f"""\
# bash completion of {program}: {program} completion bash > ~/.bash_completion.d/{program}
_{program}() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} path= word i words=
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${{COMP_WORDS[i]}}
        case "$word" in -*) continue ;; esac
        case "${{path:+$path }}$word" in
{_render_bash_paths(levels)}
        esac
    done
    case "$path $prev" in
{_render_bash_choices(levels)}
    esac
    if [ -z "$words" ]; then
        case "$path" in
{_render_bash_words(levels)}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _{program} {program}
"""


def _render_bash_paths(levels: Sequence[CompletionLevel]) -> str:
    paths = "|".join(shlex.quote(level.key) for level in levels if level.path)
    return f'            {paths}) path="${{path:+$path }}$word" ;;'


def _render_bash_choices(levels: Sequence[CompletionLevel]) -> str:
    lines = [
        f"        {shlex.quote(f'{level.key} {option.text}')}) "
        f"words={shlex.quote(' '.join(option.choices))} ;;"
        for level in levels
        for option in level.options
        if option.choices
    ]
    return "\n".join([*lines, "        *) ;;"])


def _render_bash_words(levels: Sequence[CompletionLevel]) -> str:
    return "\n".join(
        f"            {shlex.quote(level.key)}) words={shlex.quote(_join_words(level))} ;;"
        for level in levels
    )


def _join_words(level: CompletionLevel) -> str:
    return " ".join(word.text for word in (*level.words, *level.options))


def _render_zsh(program: str, levels: Sequence[CompletionLevel]) -> str:
    # zsh supports bash completions through bashcompinit.
    return f"""\
#compdef {program}
# zsh completion of {program}: {program} completion zsh > ~/.zsh/completions/_{program}
autoload -U +X compinit && compinit -i
autoload -U +X bashcompinit && bashcompinit
{_render_bash(program, levels)}"""


def _render_fish(program: str, levels: Sequence[CompletionLevel]) -> str:
    lines = [
        f"# fish completion of {program}: "
        f"{program} completion fish > ~/.config/fish/completions/{program}.fish"
    ]
    for level in levels:
        condition = shlex.quote(_build_fish_condition(level, levels))
        lines += [
            f"complete -c {program} -n {condition} -f -a {shlex.quote(word.text)}"
            f"{_format_description(word)}"
            for word in level.words
        ]
        for option in level.options:
            values = f" -x -a {shlex.quote(' '.join(option.choices))}" if option.choices else ""
            name = shlex.quote(option.text.removeprefix("--"))
            lines.append(
                f"complete -c {program} -n {condition} -l "
                f"{name}{values}{_format_description(option)}"
            )
    return "\n".join(lines) + "\n"


def _build_fish_condition(level: CompletionLevel, levels: Sequence[CompletionLevel]) -> str:
    """Return fish's condition for a level: its words are present, the next one isn't."""
    if not level.path:
        return "__fish_use_subcommand"
    conditions = [f"__fish_seen_subcommand_from {word}" for word in level.path]
    next_words = [
        other_level.path[-1] for other_level in levels if other_level.path[:-1] == level.path
    ]
    if next_words:
        conditions.append(f"not __fish_seen_subcommand_from {' '.join(next_words)}")
    return "; and ".join(conditions)


def _format_description(word: CompletionWord) -> str:
    text = word.help.replace("%%", "%")
    return f" -d {shlex.quote(text)}" if text else ""
