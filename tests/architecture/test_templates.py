"""Templates compile, and the templates that they include or extend exist."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.template import Engine, Template
from django.template.base import Variable
from django.template.loader_tags import ExtendsNode, IncludeNode

FOLDER = Path(__file__).resolve().parents[2] / "templates"
NAMES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.html"))


def list_required(template: Template) -> Iterator[str]:
    """Yield the names of templates that a template includes or extends by a constant name."""
    for node in template.nodelist.get_nodes_by_type(IncludeNode):
        if isinstance(node, IncludeNode) and isinstance(node.template.var, str):
            yield node.template.var
    for node in template.nodelist.get_nodes_by_type(ExtendsNode):
        if isinstance(node, ExtendsNode) and not isinstance(node.parent_name.var, Variable):
            yield str(node.parent_name.var)


@pytest.mark.parametrize("name", NAMES)
def test_a_template_compiles_and_finds_the_others(name: str) -> None:
    engine = Engine.get_default()
    for required in list_required(engine.get_template(name)):
        engine.get_template(required)
