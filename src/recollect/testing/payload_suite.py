"""Payload: every kind of column comes back as it was, and what was returned stays as it is."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from recollect.data.ragged import Ragged
from recollect.data.schema import Column
from recollect.errors import InvalidValue, SchemaError, SnapshotError
from recollect.rules.query import field
from recollect.rules.selectors import Fifo, Prioritized, Smallest
from recollect.store import Store
from recollect.testing.base import StorageTests

NUMBERS = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "float32", "float64",
)  # fmt: skip


class PayloadTests(StorageTests):
    """What is stored, and what is read."""

    def test_every_dtype_and_shape_comes_back(self) -> None:
        rng = np.random.default_rng(0)
        columns: dict[str, Any] = {}
        for dtype in NUMBERS:
            for shape in ((), (3,), (2, 0), (2, 2)):
                values = rng.integers(0, 2 if dtype == "bool" else 100, (5, *shape)).astype(dtype)
                columns[f"{dtype}_{'x'.join(map(str, shape))}"] = values
        columns["bfloat16"] = np.arange(5).astype(ml_dtypes.bfloat16)
        columns["extreme"] = np.array([-(2**63), 2**63 - 1, 0, -1, 1])
        columns["floats"] = np.array([np.inf, -np.inf, np.nan, -0.0, 5e-324])
        table = self.table()
        keys = table.insert(columns)
        batch = table.get(keys)
        assert batch.columns.keys() == columns.keys()
        for name, values in columns.items():
            assert batch[name].dtype == values.dtype, name
            assert batch[name].shape == values.shape, name
            assert batch[name].tobytes() == values.tobytes(), name
        assert table.nbytes == sum(values.nbytes for values in columns.values())

    def test_ragged_text_bytes_nested_and_absent_cells_come_back(self) -> None:
        signature = {
            "obs": {"speed": Column("float32"), "map": Column("uint8", (2, 2))},
            "tokens": Column("int32", ragged=True),
            "frames": Column("float16", (2,), ragged=True),
            "text": Column("str", optional=True),
            "raw": Column("bytes"),
            "image": Column("uint8", (3,), optional=True),
        }
        grid = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
        rows: dict[str, Any] = {
            "obs": {"speed": np.arange(1, 4, dtype=np.float32), "map": grid},
            "tokens": [[1, 2, 3], [], [4]],
            "frames": [np.zeros((0, 2)), np.ones((2, 2)), np.zeros((1, 2))],
            "text": ["", None, "naïve 🎲\x00end"],
            "raw": [b"", b"\x00\xff", b"'; --"],
            "image": [None, [1, 2, 3], None],
        }  # fmt: skip
        table = self.table(signature=signature)
        batch = table.get(table.insert(rows))
        assert batch["obs"]["speed"].tolist() == [1, 2, 3]
        assert np.array_equal(batch["obs.map"], grid)
        assert [cell.tolist() for cell in batch["tokens"].to_list()] == rows["tokens"]
        assert batch["frames"].lengths.tolist() == [0, 2, 1]
        assert batch["text"].to_list() == ["", "", "naïve 🎲\x00end"]
        assert batch.present["text"].tolist() == [True, False, True]
        assert batch["raw"].to_list() == rows["raw"]
        assert batch.present["image"].tolist() == [False, True, False]
        assert batch["image"][1].tolist() == [1, 2, 3]

    def test_items_of_several_rows_share_cells_and_stay_whole(self) -> None:
        table = self.table(sampler=Fifo(), capacity=4)
        table.insert(
            {"x": np.arange(6), "text": list("abcdef")},
            shared={"prompt": ["one", "two", "three"], "grid": np.eye(3, dtype=np.float32)},
            rows_per_item=[3, 1, 2],
        )
        batch = table.sample(3)
        assert batch.info.row_offsets.tolist() == [0, 3, 4, 6]
        assert batch.shared["prompt"].to_list() == ["one", "two", "three"]
        assert np.array_equal(batch.shared["grid"], np.eye(3))
        held = table.take(1, lease=60.0)
        assert held["x"].tolist() == [0, 1, 2]
        table.give_back(held.info.lease)
        taken = table.take(2)
        assert taken["text"].to_list() == ["a", "b", "c", "d"]
        assert taken.shared["prompt"].to_list() == ["one", "two"]
        assert table.nbytes == 2 * 8 + 2 + 5 + 12
        assert table.counts("rows") == {2: 1}

    def test_some_columns_can_be_read_alone(self) -> None:
        table = self.table()
        keys = table.insert({"a": {"b": [1], "c": [2.0]}, "d": [[1, 2]]})
        assert list(table.get(keys, ["a.c"]).columns) == ["a.c"]
        assert list(table.get(keys, ["a"]).columns) == ["a.b", "a.c"]
        with pytest.raises(SchemaError, match="unknown column"):
            table.get(keys, ["e"])

    def test_get_keeps_the_order_of_its_keys(self) -> None:
        table = self.table()
        keys = table.insert({"x": np.arange(10)})
        order = [7, 2, 2, 9, 0]
        batch = table.get(keys[order])
        assert batch["x"].tolist() == order
        assert batch.info.keys.tolist() == keys[order].tolist()
        assert batch.info.times_sampled.tolist() == [0] * 5

    def test_what_was_returned_is_never_written_again(self) -> None:
        table = self.table(capacity=8, sampler=Fifo(), tags={"score": float})
        given = np.arange(8.0)
        keys = table.insert(
            {"x": given, "t": Ragged.from_list([[n] for n in range(8)])}, score=0.5, task="old"
        )
        given[:] = -1  # what was inserted is the table's own
        batches = [table.get(keys), table.sample(8), table.take(2, lease=60.0)]
        copies = [batch["x"].tolist() for batch in batches]
        times = [batch.info.times_sampled.tolist() for batch in batches]
        table.update(keys, score=9.0, task="new", priority=7.0)
        table.give_back(batches[2].info.lease)
        for number in range(30):
            table.insert({"x": [100.0 + number], "t": Ragged.from_list([[number] * 3])})
        assert [batch["x"].tolist() for batch in batches] == copies
        assert [batch.info.times_sampled.tolist() for batch in batches] == times
        for batch in batches:
            assert set(batch.info.score.tolist()) == {0.5}
            assert set(batch.info.task.tolist()) == {"old"}
            assert set(batch.info.priority.tolist()) == {1.0}
            assert batch.info.table_size == 8
            assert batch["t"].values.tolist() == batch["x"].tolist()

    def test_churn_keeps_what_is_alive(self) -> None:
        """Many more items than there is room for, of very different sizes, some of which stay."""
        table = self.table(capacity=60, remover=Smallest("priority"))
        rng = np.random.default_rng(1)
        kept: dict[int, int] = {}
        for turn in range(40):
            sizes = rng.integers(0, 4000, 10)
            stays = [1.0 if turn % 8 == 0 and place == 0 else 0.0 for place in range(10)]
            keys = table.insert(
                {"x": Ragged.from_list([np.full(size, turn, np.int16) for size in sizes])},
                priority=stays,
            )
            if turn % 8 == 0:
                kept[int(keys[0])] = turn
        batch = table.get(list(kept))
        assert [set(cell.tolist()) for cell in batch["x"].to_list()] == [
            {turn} for turn in kept.values()
        ]
        assert len(table) == 60
        table.delete(where=field("priority") == 0)
        assert table.nbytes == batch["x"].values.nbytes
        assert table.get(list(kept)).equals(batch)

    def test_a_large_insert_comes_back(self) -> None:
        table = self.table(capacity=3000, sampler=Fifo())
        x = np.arange(3000 * 64, dtype=np.float32).reshape(3000, 64)
        keys = table.insert({"x": x, "n": np.arange(3000)})
        assert np.array_equal(table.get(keys)["x"], x)
        taken = table.take(1000)
        assert np.array_equal(taken["x"], x[:1000])
        assert table.nbytes == 2000 * (256 + 8)

    def test_wrong_columns_are_refused_and_change_nothing(self) -> None:
        table = self.table()
        keys = table.insert({"x": np.zeros((2, 3), np.float32)}, task="a")
        for columns in (
            {"x": np.zeros((2, 3))},
            {"x": np.zeros((2, 4), np.float32)},
            {"y": np.zeros(2)},
            {"x": np.zeros((2, 3), np.float32), "y": np.zeros(2)},
        ):
            with pytest.raises(SchemaError):
                table.insert(columns)
        assert sorted(table.counts("key")) == sorted(keys.tolist())

    # -- saving -----------------------------------------------------------------------------------
    def test_a_store_saves_it_or_says_that_it_cannot(self) -> None:
        table = self.table("experience", sampler=Prioritized(), tags={"score": float}, seed=1)
        table.insert(
            {"x": np.arange(20), "t": Ragged.from_list([[n] * (n % 3) for n in range(20)])},
            score=0.5,
        )
        table.sample(6)
        held = table.take(3, lease=60.0)
        store = Store([table])
        if not self.can_save:
            with pytest.raises((SnapshotError, InvalidValue), match="experience"):
                store.save(self.folder / "snapshot")
            assert not (self.folder / "snapshot").exists()
            assert len(table) == 20
            return
        store.save(self.folder / "snapshot")
        table.give_back(held.info.lease)
        other = self.table("experience", sampler=Prioritized(), tags={"score": float}, seed=2)
        Store([other]).load(self.folder / "snapshot")
        keys = sorted(table.counts("key"))
        assert sorted(other.counts("key")) == keys
        assert other.get(keys).equals(table.get(keys))
        times = table.get(keys).info.times_sampled
        assert other.get(keys).info.times_sampled.tolist() == times.tolist()
        assert not set(other.insert({"x": [1], "t": Ragged.from_list([[3]])}).tolist()) & set(keys)
