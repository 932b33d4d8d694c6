"""Completion for shells, written from the parsers themselves: what can be typed is what there is.

A script is made once and holds only words: completing starts no Python and asks no database.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

SHELLS = ("bash", "zsh", "fish")
# Django's options of every command, which nobody looks for at the prompt.
_BORING = frozenset(
    (
        *("--version", "--verbosity", "--settings", "--pythonpath", "--traceback"),
        *("--no-color", "--force-color", "--skip-checks"),
    )
)


@dataclass(frozen=True)
class Word:
    """A word that can come next: a command, a verb or an option, with its help."""

    text: str
    help: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Level:
    """What can be typed behind `path` (nothing, a command, or a command and its verb)."""

    path: tuple[str, ...]
    words: tuple[Word, ...] = ()
    options: tuple[Word, ...] = field(default=())

    @property
    def key(self) -> str:
        """The path as one text."""
        return " ".join(self.path)


def levels(commands: Sequence[tuple[str, str, argparse.ArgumentParser]]) -> tuple[Level, ...]:
    """Return every level of (name, help, parser) commands."""
    top = Level((), tuple(Word(name, text) for name, text, _ in commands))
    below = [level for name, _, parser in commands for level in _levels((name,), parser)]
    return (top, *below)


def script(shell: str, program: str, found: Sequence[Level]) -> str:
    """Return the completion script of one of `SHELLS`."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](program, found)


def _levels(path: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[Level]:
    words: list[Word] = []
    options: list[Word] = []
    below: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            words += [Word(c.dest, c.help or "") for c in action._choices_actions]
        elif action.option_strings:
            options += _option(action)
        elif action.choices:
            words += [Word(str(choice)) for choice in action.choices]
    yield Level(path, tuple(words), tuple(options))
    for name, child in below.items():
        yield from _levels((*path, name), child)


def _option(action: argparse.Action) -> Iterator[Word]:
    text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
    choices = tuple(str(choice) for choice in action.choices or ())
    for name in action.option_strings:
        if name.startswith("--") and name not in _BORING:
            yield Word(name, text, choices)


def _bash(program: str, found: Sequence[Level]) -> str:
    return f"""\
# bash completion of {program}: {program} completion bash > ~/.bash_completion.d/{program}
_{program}() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} path= word i words=
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${{COMP_WORDS[i]}}
        case "$word" in -*) continue ;; esac
        case "${{path:+$path }}$word" in
{_bash_paths(found)}
        esac
    done
    case "$path $prev" in
{_bash_choices(found)}
    esac
    if [ -z "$words" ]; then
        case "$path" in
{_bash_words(found)}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _{program} {program}
"""


def _bash_paths(found: Sequence[Level]) -> str:
    paths = "|".join(shlex.quote(level.key) for level in found if level.path)
    return f'            {paths}) path="${{path:+$path }}$word" ;;'


def _bash_choices(found: Sequence[Level]) -> str:
    lines = [
        f"        {shlex.quote(f'{level.key} {option.text}')}) "
        f"words={shlex.quote(' '.join(option.choices))} ;;"
        for level in found
        for option in level.options
        if option.choices
    ]
    return "\n".join([*lines, "        *) ;;"])


def _bash_words(found: Sequence[Level]) -> str:
    return "\n".join(
        f"            {shlex.quote(level.key)}) words={shlex.quote(_joined(level))} ;;"
        for level in found
    )


def _joined(level: Level) -> str:
    return " ".join(word.text for word in (*level.words, *level.options))


def _zsh(program: str, found: Sequence[Level]) -> str:
    # zsh reads bash's completions itself; `-D` of compinit is left to the person's own setup.
    return f"""\
#compdef {program}
# zsh completion of {program}: {program} completion zsh > ~/.zsh/completions/_{program}
autoload -U +X compinit && compinit -i
autoload -U +X bashcompinit && bashcompinit
{_bash(program, found)}"""


def _fish(program: str, found: Sequence[Level]) -> str:
    lines = [
        f"# fish completion of {program}: "
        f"{program} completion fish > ~/.config/fish/completions/{program}.fish"
    ]
    for level in found:
        when = shlex.quote(_seen(level, found))
        lines += [
            f"complete -c {program} -n {when} -f -a {shlex.quote(word.text)}{_described(word)}"
            for word in level.words
        ]
        for option in level.options:
            values = f" -x -a {shlex.quote(' '.join(option.choices))}" if option.choices else ""
            name = shlex.quote(option.text.removeprefix("--"))
            lines.append(f"complete -c {program} -n {when} -l {name}{values}{_described(option)}")
    return "\n".join(lines) + "\n"


def _seen(level: Level, found: Sequence[Level]) -> str:
    """Return fish's condition for being at a level: its words are there, the next one isn't."""
    if not level.path:
        return "__fish_use_subcommand"
    here = [f"__fish_seen_subcommand_from {word}" for word in level.path]
    deeper = [other.path[-1] for other in found if other.path[:-1] == level.path]
    if deeper:
        here.append(f"not __fish_seen_subcommand_from {' '.join(deeper)}")
    return "; and ".join(here)


def _described(word: Word) -> str:
    text = word.help.replace("%%", "%")
    return f" -d {shlex.quote(text)}" if text else ""
