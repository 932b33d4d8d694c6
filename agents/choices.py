"""Which of a server's capabilities an agent gets (FEATURES C2, D2). Pure.

A binding keeps globs over the server's own names; none means everything, also what comes later.
Nobody gets everything by leaving a list empty: a choice names at least one, or says `*`.
"""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible

EVERYTHING = "*"


def choose(
    patterns: Sequence[str], offered: Collection[str], *, field: str = "allowed_tools"
) -> list[str]:
    """Return what a binding keeps of a choice among `offered` names: [] for `*`, else the globs.

    Raises `Invalid`: `nothing_chosen` for an empty choice, `unknown_tool` where a name or glob
    means none of what is offered (what offers nothing yet, is not asked).
    """
    if EVERYTHING in patterns:
        return []
    if not patterns:
        raise Invalid(
            "Nothing is chosen.",
            code="nothing_chosen",
            field=field,
            remedy=say(
                'Choose at least one, or everything ("{everything}"), also what comes later.',
                everything=EVERYTHING,
            ),
        )
    for pattern in patterns if offered else ():
        if not any(fnmatchcase(name, pattern) for name in offered):
            raise Invalid(
                say("The server offers nothing called `{pattern}`.", pattern=visible(pattern, 120)),
                code="unknown_tool",
                field=field,
                remedy="List what it offers, and choose of that.",
            )
    return list(dict.fromkeys(patterns))


def gets(name: str, allowed: Sequence[str], denied: Sequence[str] = ()) -> bool:
    """Tell whether a binding with these lists lets a name through."""
    if any(fnmatchcase(name, glob) for glob in denied):
        return False
    return not allowed or any(fnmatchcase(name, glob) for glob in allowed)


def ticked(names: Collection[str], offered: Collection[str], kept: Sequence[str]) -> list[str]:
    """Return the globs for ticked names: those at hand where they already mean just these."""
    if kept and {name for name in offered if gets(name, kept)} == set(names):
        return list(kept)
    return [literal(name) for name in sorted(names)]


def literal(name: str) -> str:
    """Return a glob that means exactly this name."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)
