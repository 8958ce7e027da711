"""Reads what an offline W&B run has on disk: what `wandb sync` sends, record by record.

The file is in LevelDB's log format: blocks of 32 KiB with chunks of checksum, length and type, behind
a head of seven bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD, BLOCK = 7, 32768
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Any]:
    """Every record of a file, as W&B's own protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), HEAD, b""
    assert data[:4] == b":W&B"
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK  # what is left of a block is too short for a chunk
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (WHOLE, LAST):
            found = Record()
            found.ParseFromString(parts)
            yield found
            parts = b""


def rows(path: Path) -> list[dict[str, Any]]:
    """All rows of the history."""
    return [
        _items(r.history.item) for r in records(path) if r.WhichOneof("record_type") == "history"
    ]


def config(path: Path) -> dict[str, Any]:
    """The configuration of the run."""
    found: dict[str, Any] = {}
    for record in records(path):
        if record.WhichOneof("record_type") in ("run", "config"):
            change = record.run.config if record.HasField("run") else record.config
            found |= _items(change.update)
    return found


def _items(items: Any) -> dict[str, Any]:
    return {
        item.key or ".".join(item.nested_key): json.loads(item.value_json or "null")
        for item in items
    }
