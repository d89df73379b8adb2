"""The columns of a table as text: written down once, and read by every process."""

from __future__ import annotations

import json
from typing import Any

from recollect.data.schema import Column, Schema


def schemas_to_json(rows: Schema, shared: Schema | None) -> str:
    def described(schema: Schema) -> list[Any]:
        return [
            [name, str(c.dtype), list(c.shape), c.ragged, c.optional, c.shared]
            for name, c in schema.columns.items()
        ]

    return json.dumps([described(rows), None if shared is None else described(shared)])


def schemas_from_json(text: str) -> tuple[Schema, Schema | None]:
    def made(described: list[Any], what: str) -> Schema:
        return Schema(
            {
                name: Column(dtype, tuple(shape), ragged=ragged, optional=optional, shared=of_item)
                for name, dtype, shape, ragged, optional, of_item in described
            },
            what,
        )

    rows, shared = json.loads(text)
    return made(rows, "column"), None if shared is None else made(shared, "shared column")
