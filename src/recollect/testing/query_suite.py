"""Queries: every form, absent values, exact numbers, and text that wants to be code."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.errors import QueryError
from recollect.rules.query import field, parse
from recollect.rules.selectors import Largest
from recollect.testing.base import StorageTests
from recollect.testing.cases import HOSTILE, QUERIES
from recollect.testing.lives import PARTITIONS

LARGE = [-(2**63) + 1, -(2**53) - 1, -1, 0, 2**53, 2**53 + 1, 2**63 - 1]


class QueryTests(StorageTests):
    """Which items a query admits."""

    @pytest.mark.parametrize("partition_by", PARTITIONS, ids=str)
    def test_every_query_counts_finds_and_deletes_what_it_says(
        self, partition_by: tuple[str, ...]
    ) -> None:
        pair = self.pair(partition_by=partition_by)
        self.fill(pair, 40)
        pair.take(3, lease=60.0)
        for case in QUERIES:
            pair.count(case.query, case.holds)
        for case in QUERIES[::3]:
            pair.delete(None, case.query, case.holds)
            pair.compare()

    @pytest.mark.parametrize("partition_by", PARTITIONS, ids=str)
    def test_counts_are_grouped(self, partition_by: tuple[str, ...]) -> None:
        pair = self.pair(partition_by=partition_by)
        self.fill(pair, 40)
        pair.take(5)
        pair.update([i.key for i in pair.model.items[:6]], task="moved", version=None, score=None)
        names = ("task", "status", "version", "score", "level", "hard", "kind", "rows", "nbytes")
        for name in (*names, "priority", "times_sampled", "inserted_at", "key"):
            pair.counts(name)
        for fields in (("task", "status"), ("hard", "kind", "level"), ("status", "score", "rows")):
            pair.counts(*fields)

    @pytest.mark.parametrize("partitioned", [False, True], ids=["scan", "partition"])
    def test_hostile_text_is_data(self, partitioned: bool) -> None:
        table = self.table(tags={"kind": str}, partition_by=("task", "kind") if partitioned else ())
        keys = table.insert(
            {"x": np.arange(len(HOSTILE)), "text": list(HOSTILE)},
            task=list(HOSTILE),
            status=list(HOSTILE),
            kind=list(HOSTILE),
        )
        batch = table.get(keys)
        assert batch["text"].to_list() == list(HOSTILE)
        for name in ("task", "status", "kind"):
            assert getattr(batch.info, name).tolist() == list(HOSTILE)
            assert table.counts(name) == dict.fromkeys(HOSTILE, 1)
        for place, text in enumerate(HOSTILE):
            for name in ("task", "status", "kind"):
                where = field(name) == text
                assert table.count(where) == 1, (name, text)
                assert table.sample(1, where=where)["x"].tolist() == [place]
                assert table.count(field(name) != text) == len(HOSTILE) - 1
            assert table.count(field("task").isin([text, "none of them"])) == 1
            assert table.count({"kind": text}) == 1
        assert table.count(parse("task = '''; DROP TABLE items; --'")) == 1
        table.update(keys, task=list(reversed(HOSTILE)))
        assert table.get(keys).info.task.tolist() == list(reversed(HOSTILE))
        assert table.delete(where=field("kind").isin(HOSTILE[:4])) == 4
        assert len(table) == len(HOSTILE) - 4

    def test_text_differs_by_case_space_and_accent(self) -> None:
        texts = ["math", "Math", "math ", " math", "MATH", "máth", "ma\u0301th"]
        table = self.table()
        table.insert({"x": np.arange(len(texts))}, task=texts)
        for text in texts:
            assert table.count(field("task") == text) == 1, repr(text)

    def test_numbers_compare_exactly(self) -> None:
        table = self.table(tags={"level": int, "score": float})
        scores = [float(value) for value in LARGE]
        keys = table.insert({"x": np.arange(len(LARGE))}, level=LARGE, score=scores)
        assert table.get(keys).info.level.tolist() == LARGE
        assert table.get(keys).info.score.tolist() == scores
        for value in [*LARGE, 2**64, -(2**70), 0.5, -0.5, 2.0**53]:
            for name, values in (("level", LARGE), ("score", scores)):
                one = field(name)
                assert table.count(one == value) == sum(v == value for v in values)
                assert table.count(one < value) == sum(v < value for v in values)
                assert table.count(one <= value) == sum(v <= value for v in values)
                assert table.count(one > value) == sum(v > value for v in values)
                assert table.count(one >= value) == sum(v >= value for v in values)
        for key in keys.tolist():
            assert table.count(field("key") == key) == 1
            assert table.count(field("key") >= key) == sum(k >= key for k in keys.tolist())
        assert table.counts("level") == dict.fromkeys(LARGE, 1)

    def test_infinite_and_tiny_numbers_are_kept(self) -> None:
        values = [float("-inf"), -1e308, -5e-324, 0.0, 5e-324, 1 / 3, 1e308, float("inf")]
        table = self.table(tags={"score": float}, sampler=Largest("score"))
        keys = table.insert({"x": np.arange(len(values))}, score=values)
        assert table.get(keys).info.score.tolist() == values
        assert table.count(field("score") > 0) == 4
        assert table.count(field("score") == 1 / 3) == 1
        assert table.take(len(values))["x"].tolist() == list(range(len(values)))[::-1]

    def test_unknown_fields_and_types_are_refused_with_what_exists(self) -> None:
        table = self.table(tags={"score": float})
        table.insert({"x": [1]})
        with pytest.raises(QueryError, match="score"):
            table.count(field("scroe") > 1)
        with pytest.raises(QueryError):
            table.count(field("task") == 3)
        with pytest.raises(QueryError):
            table.count(field("task") < "m")
        assert table.count() == 1
