"""Django's translation tags, with numbers formatted by the reader's language.

The setting `TEMPLATES` registers this library as `i18n`, so every template uses it.
"""

from typing import Any

from django.template import Context, Library
from django.template.base import FilterExpression, Node, Parser, Token, TokenType
from django.templatetags import i18n

from bonobot.core.i18n.localization import format_number

COUNTER = "plural_counter"  # the number that selects the plural form; not shown

register = Library()
register.tags.update(i18n.register.tags)
register.filters.update(i18n.register.filters)


class NumberExpression:
    """An expression whose integers are formatted for the reader."""

    def __init__(self, expression: FilterExpression) -> None:
        self.expression = expression

    def resolve(self, context: Context) -> Any:
        """Return the value of the expression, an integer as a text with separators."""
        value = self.expression.resolve(context)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return format_number(value) if is_number else value


@register.tag("blocktranslate")
@register.tag("blocktrans")
def translate_block(parser: Parser, token: Token) -> Node:
    """Parse Django's `blocktranslate`, and format the integers that its text contains."""
    node: Any = i18n.do_block_translate(parser, token)
    shown = {
        part.contents: parser.compile_filter(part.contents)
        for part in (*node.singular, *(node.plural or ()))
        if part.token_type == TokenType.VAR
    }
    shown |= node.extra_context
    if node.countervar:
        shown[node.countervar] = node.counter
    node.extra_context = {name: NumberExpression(value) for name, value in shown.items()}
    if node.countervar:
        node.extra_context[COUNTER] = node.counter
        node.countervar, node.counter = COUNTER, parser.compile_filter(COUNTER)
    translated_block: Node = node
    return translated_block
