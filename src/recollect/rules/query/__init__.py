"""Queries: conditions on an item's fields, described once and executed by every storage.

A query is a small tree of frozen nodes. It is built from Python (`rc.field("score") > 0.8`),
from text (`rc.parse("score > 0.8")`) or from a mapping (`{"score": {"gt": 0.8}}`). `bind` checks
it against a table's fields and makes its values exact in the type of each field; then a storage
compiles the tree: `mask` does so here for NumPy, the others stand next to their storage.

One meaning on every storage:

- Logic has two values. A condition holds or it does not; `~` is plain negation.
- An absent value equals nothing and has no order, so `==`, `<`, `<=`, `>`, `>=`, `isin` and
  `between` do not hold for it. NaN in a float field is an absent value.
- `a != b` is exactly `~(a == b)`, so it holds for an absent value.
- `field("x") == None` asks whether the value is absent, `!= None` whether it is there.
- Numbers compare exactly, whatever their types: `key > 2.5`, `priority < 2**53 + 1`.
- Text and bool have equality and `isin`, and no order: a database may sort text differently.
"""

from recollect.rules.query.allowed_partitions import allowed_partitions
from recollect.rules.query.expression import (
    And,
    Compare,
    Field,
    IsIn,
    Not,
    Or,
    Query,
    field,
    fields_of,
)
from recollect.rules.query.field_types import FieldType, bind
from recollect.rules.query.mapping import as_query, from_mapping
from recollect.rules.query.masks import FieldValues, mask
from recollect.rules.query.parser import parse

__all__ = [
    "And",
    "Compare",
    "Field",
    "FieldType",
    "FieldValues",
    "IsIn",
    "Not",
    "Or",
    "Query",
    "allowed_partitions",
    "as_query",
    "bind",
    "field",
    "fields_of",
    "from_mapping",
    "mask",
    "parse",
]
