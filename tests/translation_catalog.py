"""The translatable texts in the sources, and the .po files with their translations.

`python -m tests.translation_catalog` (`make messages`) updates the German file: new texts get an
empty translation, and removed texts are deleted. It doesn't need gettext's tools.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.translation.template import templatize

from bonobot.core.i18n.catalogs import HEADER, Catalog, Message, compile_catalogs, read_catalog
from tests.architecture.sources import Source, product
from tests.audit_actions import find_actions, get_title
from tests.parts import ROOT
from tests.problem_texts import find_sentences, is_english_only

PRESETS = ROOT / "mcp_servers" / "presets" / "catalog.json"
LOCALES = ROOT / "bonobot" / "locale"
GERMAN = LOCALES / "de" / "LC_MESSAGES" / "django.po"
# Replacements for some texts of Django, allauth, and the theme.
ENGLISH = LOCALES / "en" / "LC_MESSAGES" / "django.po"
SINGLE = frozenset({"_", "_t", "_lazy", "gettext", "gettext_lazy", "gettext_noop"})
PLURAL = frozenset({"_n", "ngettext", "ngettext_lazy"})
# Texts of the theme and of allauth that our pages show; the theme has no German translation.
THEME = (
    " By %(filter_title)s ",
    "After you've created a user, you’ll be able to edit more user options.",
    "Apply Filters",
    "Cancel",
    "Change Password",
    "Clear all filters",
    "Collapse",
    "Dark",
    "Date from",
    "Date to",
    "Expand row",
    "Filters",
    "Forgotten your password or username?",
    "From",
    "General",
    "Go back",
    "Light",
    "More actions",
    "No results found",
    "Raw passwords are not stored, so there is no way to see this user’s password, but you can "
    'change the password using <a href="{}" class="text-primary-600 dark:text-primary-500">this '
    "form</a>.",
    "Reset filters",
    "Run",
    "Select action",
    "Select all rows",
    "Select record",
    "Select value",
    "Set password: %s",
    "System",
    "TOTP Authenticator",
    "The %(name)s “%(obj)s” was deleted successfully.",
    "The {name} “{obj}” was added successfully.",
    "The {name} “{obj}” was changed successfully.",
    "To",
    "Toggle password visibility",
    "Type to search",
    "Update",
    "Value",
    "You have been successfully logged out from the administration",
)
_LITERAL = r"""(?:u?'(?:[^'\\]|\\.)*'|u?"(?:[^"\\]|\\.)*")"""
_CALL = re.compile(rf"(?<!\w)(n?gettext|_)\(\s*({_LITERAL})(?:\s*,\s*({_LITERAL}))?", re.DOTALL)


@cache
def find_messages() -> frozenset[Message]:
    """Return every text of the screens; a text that has a plural anywhere has it everywhere."""
    texts = {Message(text) for text in THEME}
    sources = product()
    for source in sources:
        texts.update(_find_in_python(source))
    texts.update(_find_in_tasks(sources))
    texts.update(Message(get_title(code)) for code in find_actions(sources))
    texts.update(_find_in_presets(json.loads(PRESETS.read_text(encoding="utf-8"))["presets"]))
    for path in (ROOT / "templates").rglob("*.html"):
        texts.update(_find_in_template(path.read_text(encoding="utf-8")))
    texts.update(Message(text) for text in find_sentences(sources))
    with_plural = {message.text for message in texts if message.plural}
    return frozenset(
        message
        for message in texts
        if message.text and (message.plural or message.text not in with_plural)
    )


def _find_in_python(source: Source) -> Iterator[Message]:
    is_translated = not is_english_only(source)
    for node in source.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        constants = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        strings = [argument for argument in constants if isinstance(argument, str)]
        if (name in SINGLE or (is_translated and _is_message_call(node))) and strings:
            yield Message(strings[0])
        elif name in PLURAL and len(strings) > 1:
            yield Message(strings[0], strings[1])


def _find_in_tasks(sources: Iterable[Source]) -> Iterator[Message]:
    """Yield the descriptions of scheduled tasks, from their docstrings."""
    modules = ("bonobot.settings.scheduled_tasks", "bonobot.settings.oauth_server")
    names = {
        module.target for source in sources if source.module in modules for module in source.strings
    }
    for source in (module for module in sources if module.module.endswith(".tasks")):
        for node in source.tree.body:
            if isinstance(node, ast.FunctionDef) and f"{source.module}.{node.name}" in names:
                summary = (ast.get_docstring(node) or "").partition("\n")[0]
                yield Message(summary.partition(";")[0].rstrip("."))


def _find_in_presets(presets: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    """Yield the descriptions of the built-in presets and of their parameters."""
    for preset in presets:
        yield Message(preset["description"])
        for parameter in preset["parameters"]:
            yield from (Message(parameter["label"]), Message(parameter["help"]))


def _is_message_call(call: ast.Call) -> bool:
    """Return whether a call is `format_message(…)` or `partial(format_message, …)`."""
    partial = ast.unparse(call.func) == "partial"
    is_template = partial and ast.unparse(call.args[0]) == "format_message"
    return is_template or (isinstance(call.func, ast.Name) and call.func.id == "format_message")


def _find_in_template(source: str) -> Iterator[Message]:
    for name, text, plural in _CALL.findall(templatize(source)):
        plural_text = ast.literal_eval(plural) if plural and name == "ngettext" else ""
        yield Message(ast.literal_eval(text), plural_text)


def format_catalog(catalog: Mapping[Message, tuple[str, ...]]) -> str:
    """Return the content of a .po file."""
    blocks = ['msgid ""\nmsgstr ""\n' + "\n".join(_quote(f"{x}\n") for x in HEADER.splitlines())]
    for message, texts in sorted(catalog.items()):
        lines = [f"msgid {_quote(message.text)}"]
        if message.plural:
            lines.append(f"msgid_plural {_quote(message.plural)}")
            lines += [f"msgstr[{number}] {_quote(text)}" for number, text in enumerate(texts)]
        else:
            lines.append(f"msgstr {_quote(texts[0])}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def update_catalog(path: Path = GERMAN) -> list[Message]:
    """Update a catalog from the sources; return the untranslated messages."""
    known = read_catalog(path) if path.exists() else {}
    catalog: Catalog = {}
    for message in find_messages():
        blank = ("", "") if message.plural else ("",)
        catalog[message] = known.get(message, blank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(format_catalog(catalog), encoding="utf-8")
    return sorted(message for message, texts in catalog.items() if not all(texts))


if __name__ == "__main__":
    settings.configure()
    for one in update_catalog():
        print(f"not translated: {one.text!r}")  # noqa: T201  # what a command says
    compile_catalogs(LOCALES)
