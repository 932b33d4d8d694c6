"""Tables: aligned columns on a terminal, tab-separated lines in a file or pipe."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bonobot.core.text.untrusted_text import make_visible

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True)
class TextTable:
    """A table: aligned columns on a terminal, tab-separated lines in a file or pipe.

    With `sentences_below`, the last column has sentences, which would make the others too narrow:
    a terminal shows them below the table, each after the first cell of its row.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    sentences_below: bool = False

    def __rich__(self) -> "Group":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        column_count = len(self.columns) - self.sentences_below
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in self.columns[:column_count]:
            table.add_column(column, overflow="fold")
        for row in self.rows:
            # As `Text`, so that `[…]` in data isn't interpreted as markup.
            table.add_row(*(Text(cell) for cell in row[:column_count]))
        sentences = (
            Text(f"{row[0]}: {sentence}")
            for row in self.rows
            for sentence in row[column_count:]
            if sentence
        )
        return Group(table, *sentences)

    def format_lines(self) -> Iterator[str]:
        """Yield the header and the rows without padding; a line break in a cell is a space."""
        for row in (self.columns, *self.rows):
            yield "\t".join(" ".join(cell.split()) for cell in row)


def build_table(
    *columns: str, rows: Sequence[Sequence[Any]], empty: str, sentences_below: bool = False
) -> Any:
    """Return a table, or the sentence `empty` if there are no rows; see `TextTable`."""
    if not rows:
        return empty
    return TextTable(
        columns,
        [[make_visible("" if cell is None else str(cell)) for cell in row] for row in rows],
        sentences_below,
    )
