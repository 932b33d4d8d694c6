"""The hash chain of audit entries, and its verification. No I/O.

A row has up to two entries (opened, closed), each at its own position in the organization's chain.
The tip (position and digest of the last entry) is stored separately, so missing entries at the end
are detected, too. A forgery of all rows and the tip is only detected by an exported tip.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

from bonobot.core.i18n.messages import format_message
from bonobot.core.records import record
from bonobot.ledger.audit import entry_encoding
from bonobot.ledger.audit.genesis import GENESIS

MAX_FAULTS = 100


def compute_entry_digest(previous: str, text: str) -> str:
    """Return the hex SHA-256 of an entry: over the previous digest and the stored text."""
    # Entries are ASCII, but a manipulated text may contain anything.
    return hashlib.sha256((previous + text).encode("utf-8", "surrogatepass")).hexdigest()


@record()
class ChainTip:
    """The end of a chain: number of entries, digest of the last one, and policy generation."""

    seq: int = 0
    digest: str = GENESIS
    generation: int = 0

    def extend(self, text: str) -> "ChainTip":
        """Return the tip after one more entry."""
        digest = compute_entry_digest(self.digest, text)
        return ChainTip(self.seq + 1, digest, self.generation)


class StoredEntry(NamedTuple):
    """A stored row; `columns` are in the format of `build_columns`."""

    id: str
    seq: int
    digest: str
    opened: str
    closed_seq: int | None
    closed_digest: str
    closed: str
    columns: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ChainFault:
    """A fault in a chain, at a position, and in a row if it is known."""

    kind: str
    seq: int
    row_id: str
    detail: str

    def __str__(self) -> str:
        row = f", row {self.row_id}" if self.row_id else ""
        return f"{self.kind} at {self.seq}{row}: {self.detail}"


# Position, digest, text, row id: a tuple because the heap of closings orders by position.
_Entry = tuple[int, str, str, str]


@dataclass(slots=True)
class ChainVerifier:
    """Verifies rows in the order of `seq`, from `start` to a tip that was read before them.

    `checkpoints` are earlier known digests by position. Without a start, the first row is trusted.
    """

    tip: ChainTip
    start: ChainTip | None = field(default_factory=ChainTip)
    checkpoints: Mapping[int, str] = field(default_factory=dict)
    rows: int = 0
    highest_seq: int = 0
    faults: list[ChainFault] = field(default_factory=list)
    _closings: list[_Entry] = field(default_factory=list)
    _last: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        if self.start is not None:
            self._last = (self.start.seq, self.start.digest)

    def verify_row(self, row: StoredEntry) -> None:
        """Verify a row's columns, and its entries after those before them."""
        self.rows += 1
        self._check_columns(row)
        closings = self._closings
        while closings and closings[0][0] < row.seq:
            self._check_entry(heappop(closings))
        self._check_entry((row.seq, row.digest, row.opened, row.id))
        if row.closed_seq is not None:
            heappush(self._closings, (row.closed_seq, row.closed_digest, row.closed, row.id))

    def verify_closing(self, row: StoredEntry) -> None:
        """Verify the columns and closing of a row whose opening is before the start."""
        self._check_columns(row)
        if row.closed_seq is not None:
            heappush(self._closings, (row.closed_seq, row.closed_digest, row.closed, row.id))

    @property
    def last_entry(self) -> ChainTip:
        return ChainTip(*self._last) if self._last else ChainTip()

    def verify_remaining(self) -> ChainTip:
        """Verify the remaining closings and return the last entry."""
        while self._closings:
            self._check_entry(heappop(self._closings))
        return self.last_entry

    def verify_end(self) -> None:
        """Verify the remaining closings, the tip, and the checkpoints beyond it."""
        last_entry = self.verify_remaining()
        seq, digest = last_entry.seq, last_entry.digest
        checkpoint_seq = max(self.checkpoints, default=0)
        if checkpoint_seq > self.tip.seq:
            detail = format_message(
                "the hash chain is shorter than an exported checkpoint, which ends at "
                "position {known}",
                known=checkpoint_seq,
            )
            self._add_fault("truncated", self.tip.seq, "", detail)
        if seq < self.tip.seq:
            detail = format_message(
                "entries {first} to {last} are missing at the end", first=seq + 1, last=self.tip.seq
            )
            self._add_fault("truncated", seq + 1, "", detail)
        elif digest != self.tip.digest:
            self._add_fault(
                "head",
                seq,
                "",
                "the stored end of the hash chain doesn't match the digest of the last entry",
            )

    def _check_entry(self, entry: _Entry) -> None:
        seq, digest, text, row_id = entry
        if seq > self.highest_seq:
            self.highest_seq = seq
        if seq > self.tip.seq:
            return  # sealed after the tip was read, or forged: `highest` tells the caller
        if self._last is None:
            self._last = (seq, digest)
            return
        last_seq, last_digest = self._last
        if seq <= last_seq:
            self._add_fault(
                "misplaced",
                seq,
                row_id,
                format_message("position {seq} is used more than once", seq=seq),
            )
            return
        if seq > last_seq + 1:
            detail = format_message(
                "entries {first} to {last} are missing", first=last_seq + 1, last=seq - 1
            )
            self._add_fault("missing", last_seq + 1, row_id, detail)
        elif compute_entry_digest(last_digest, text) != digest:
            self._add_fault(
                "altered", seq, row_id, "the digest doesn't match the entry's text and position"
            )
        if self.checkpoints.get(seq, digest) != digest:
            self._add_fault(
                "anchor",
                seq,
                row_id,
                "the digest at this position differs from the exported checkpoint",
            )
        self._last = (seq, digest)

    def _check_columns(self, row: StoredEntry) -> None:
        if row.closed_seq is None and (row.closed or row.closed_digest):
            self._add_fault("columns", row.seq, row.id, "a closing entry has no position")
        if entry_encoding.has_matching_columns(row.opened, row.closed, row.columns):
            return
        try:
            expected = entry_encoding.parse_columns(row.opened, row.closed)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            unreadable_detail = format_message(
                "the hashed text can't be read: {error}", error=str(error)
            )
            self._add_fault("unreadable", row.seq, row.id, unreadable_detail)
            return
        if expected != row.columns:
            pairs = zip(entry_encoding.COLUMN_NAMES, expected, row.columns, strict=True)
            names = ", ".join(
                f"`{name}`"
                for name, expected_value, stored_value in pairs
                if expected_value != stored_value
            )
            mismatch_detail = format_message("{names} differ from the hashed text", names=names)
            self._add_fault("columns", row.seq, row.id, mismatch_detail)

    def _add_fault(self, kind: str, seq: int, row_id: str, detail: str) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(ChainFault(kind, seq, row_id, detail))
