"""The reference is generated from the code and complete."""

from pathlib import Path

from drf_spectacular.generators import SchemaGenerator

from bonobot.core import environment
from bonobot.core.documentation.reference import (
    build_errors_page,
    format_table,
)
from docs.making import reference


def test_each_setting_has_a_row_with_a_description() -> None:
    page = reference.pages()["settings.md"]
    for name, kind in environment.list_variables().items():
        line = next(line for line in page.splitlines() if line.startswith(f"| `{name}` | {kind}"))
        assert len(line.split("|")[4].strip()) > 10, name


def test_each_command_and_verb_is_listed_with_its_help() -> None:
    page = reference.pages()["commands.md"]
    assert "### bonobot mcp add-operation\n" in page
    assert "## bonobot up\n" in page
    assert "examples:\n  bonobot tokens create ci --role operator" in page


def test_each_operation_of_rest_is_on_the_page_of_its_tag() -> None:
    paths = SchemaGenerator().get_schema(request=None, public=True)["paths"]
    pages = reference.pages()
    for path, operations in paths.items():
        for method, operation in operations.items():
            page = pages[f"rest/{operation['tags'][0]}.md"]
            assert f"## {method.upper()} {path}\n" in page


def test_codes_have_the_status_and_messages_of_the_sources() -> None:
    page = reference.pages()["refusals.md"]
    assert "| `rate_limited` | 429 |" in page
    assert "| `audit_unavailable` | 503 |" in page
    assert "| `denied_by_policy` | 403 |" in page


def test_a_code_is_found_where_it_is_raised_or_the_default(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "errors.py").write_text(
        "class Late(Problem):\n    code = 'late'\n    status = 503\n"
        "    title = 'Too late'\n"
        "raise Late(f'{name} came late.', code='too_late', remedy='Come earlier.')\n"
        "raise Late('Nobody waited.')\n"
        "other(code='not_a_problem')\n"
    )
    page = build_errors_page(tmp_path, tmp_path)
    assert "| `late` | 503 | Too late. / Nobody waited. |" in page
    assert "| `too_late` | 503 | … came late. | Come earlier. |" in page
    assert "not_a_problem" not in page


def test_codes_of_subclasses_and_below_texts_that_begin_like_statements_are_found(
    tmp_path: Path,
) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "errors.py").write_text(
        "class Late(Problem):\n    code = 'late'\n\n\nclass TooLate(Late):\n    status = 503\n"
    )
    (tmp_path / "agents" / "users.py").write_text(
        'TEXT = """\nraise Late()\n"""\n\n\ndef run():\n    raise TooLate("Nobody waited.")\n'
    )
    page = build_errors_page(tmp_path, tmp_path)
    assert "| `late` | 400, 503 | Nobody waited. |" in page


def test_a_cell_doesnt_break_its_table() -> None:
    assert format_table(("a",), [("x|y\n<b>",)]).splitlines()[2] == "| x\\|y &lt;b> |"


def test_metrics_and_alerts_are_listed() -> None:
    page = reference.pages()["metrics.md"]
    assert "`bonobot_calls_total`" in page
    assert "[BonobotDown](../runbooks.md#bonobotdown)" in page
