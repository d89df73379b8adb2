"""Which partitions a query can touch, so that a storage looks there and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from recollect.rules.query.expression import And, Compare, IsIn, Or, Query, Scalar, combine

Allowed = frozenset[Scalar | None]


def allowed_partitions(
    query: Query, partition_fields: Sequence[str]
) -> tuple[dict[str, Allowed], Query | None]:
    """The values that `query` allows per partition field, and the rest of the query, if any.

    `query` is bound. None among the values stands for 'absent'; an empty set means that no item
    can match; a partition field that is missing from the dict may have any value.

    >>> import recollect as rc
    >>> from recollect.rules.query import allowed_partitions
    >>> query = rc.parse("task = 'math' and score > 0.8")
    >>> allowed, rest = allowed_partitions(query, ["task", "status"])
    >>> allowed, str(rest)
    ({'task': frozenset({'math'})}, 'score > 0.8')
    """
    allowed: dict[str, Allowed] = {}
    rest: list[Query] = []
    for part in query.parts if isinstance(query, And) else (query,):
        found = _equality(part)
        if found is None or found[0] not in partition_fields:
            rest.append(part)
        else:
            name, values = found
            allowed[name] = allowed.get(name, values) & values
    return allowed, combine(And, rest) if rest else None


def _equality(query: Query) -> tuple[str, Allowed] | None:
    """(field, values) if `query` says exactly that the field has one of the values."""
    match query:
        case Compare(name, "==", value):
            return name, frozenset({value})
        case IsIn(name, values):
            return name, frozenset(values)
        case Or(parts):
            found = [pair for part in parts if (pair := _equality(part))]
            if len(found) == len(parts) and len({name for name, _ in found}) == 1:
                return found[0][0], frozenset().union(*(values for _, values in found))
    return None
