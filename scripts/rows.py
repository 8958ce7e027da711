"""Rows of one CSV, made in several sittings: read, and put new ones in the place of old ones."""

from __future__ import annotations

import csv
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from rl_twoclocks.rundir import whole_file


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV as text; none where the file is missing."""
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def keys(rows: Sequence[dict], columns: Sequence[str]) -> set[tuple[str, ...]]:
    """Return what the rows are known by: the text of these columns."""
    return {tuple(str(row[column]) for column in columns) for row in rows}


def by_key(
    rows: Sequence[dict[str, str]], columns: Sequence[str]
) -> dict[tuple[str, ...], dict[str, str]]:
    """Return the rows by the text of these columns."""
    return {tuple(row[column] for column in columns): row for row in rows}


def merge(path: Path, rows: Sequence[dict], columns: Sequence[str]) -> list[dict]:
    """Write `rows` in the place of those known by the same `columns`, and return all, in order.

    Numbers within a key are put in order as numbers.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Scripts that run beside each other merge into one file.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        merged = _merged(path, rows, columns)
    finally:
        os.close(folder)
    print(f"wrote {path.name} ({len(merged)} rows)")
    return merged


def others(path: Path, rows: Sequence[dict], columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV that `rows`, known by `columns`, do not take the place of."""
    mine = keys(rows, columns)
    return [row for row in read(path) if not keys([row], columns) & mine]


def _merged(path: Path, rows: Sequence[dict], columns: Sequence[str]) -> list[dict]:
    kept = others(path, rows, columns)

    def order(row: dict) -> list[tuple[float, str]]:
        words = [str(row[column]) for column in columns]
        return [(float(w), "") if w.lstrip("-").isdigit() else (0.0, w) for w in words]

    merged = sorted([*kept, *rows], key=order)
    write(path, merged, [*rows, *kept])
    return merged


def write(path: Path, rows: Sequence[dict], columns_of: Sequence[dict] | None = None) -> None:
    """Write a CSV so that it is there whole or not at all, with all columns of the rows.

    Args:
        columns_of: rows that name the columns in order; by default those that are written.
    """
    names = dict.fromkeys(name for row in columns_of or rows for name in row)
    with whole_file(path) as partial, open(partial, "w", newline="") as file:
        writer = csv.DictWriter(file, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
