"""Templates compile, and the templates that they include or extend exist."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.template import Engine, Template
from django.template.base import FilterExpression, Variable
from django.template.loader_tags import ExtendsNode, IncludeNode

FOLDER = Path(__file__).resolve().parents[2] / "templates"
NAMES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.html"))


def list_constant(expression: object) -> Iterator[str]:
    """Yield the name of a template, unless it depends on the context."""
    if isinstance(expression, FilterExpression) and not isinstance(expression.var, Variable):
        yield str(expression.var)


def list_required(template: Template) -> Iterator[str]:
    """Yield the names of templates that a template includes or extends by a constant name."""
    for node in template.nodelist.get_nodes_by_type(IncludeNode):
        if isinstance(node, IncludeNode):
            yield from list_constant(node.template)
    for node in template.nodelist.get_nodes_by_type(ExtendsNode):
        if isinstance(node, ExtendsNode):
            yield from list_constant(node.parent_name)


@pytest.mark.parametrize("name", NAMES)
def test_a_template_compiles_and_finds_the_others(name: str) -> None:
    engine = Engine.get_default()
    for required in list_required(engine.get_template(name)):
        engine.get_template(required)
