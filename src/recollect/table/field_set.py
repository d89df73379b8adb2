"""The fields of a table's items, and the queries over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recollect.rules.query import FieldType, Query, allowed_partitions, as_query, bind
from recollect.storage.base import Where
from recollect.storage.fields import BUILT_IN

REMEMBERED_QUERIES = 256


class FieldSet:
    """Built-in fields and tags with their types, which of them partition, and checked queries."""

    def __init__(self, tags: Mapping[str, FieldType], partition_by: tuple[str, ...]) -> None:
        self.tags = tags
        self.kinds: dict[str, FieldType] = {**BUILT_IN, **tags}
        self.partition_by = partition_by
        self._wheres: dict[Query, Where] = {}

    def where(self, given: Any) -> Where:
        """Check a query against the fields, and find out what partitions can answer of it."""
        query = as_query(given)
        assert query is not None
        known = self._wheres.get(query)
        if known is None:
            bound = bind(query, self.kinds)
            partitions, rest = allowed_partitions(bound, self.partition_by)
            known = Where(bound, partitions, rest)
            if len(self._wheres) >= REMEMBERED_QUERIES:
                self._wheres.clear()
            self._wheres[query] = known
        return known
