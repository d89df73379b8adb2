"""Batches as torch tensors."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest

from recollect.data.batch import Batch
from recollect.data.conversions import RaggedTensor
from recollect.errors import SchemaError

torch = pytest.importorskip("torch", reason="needs recollect[torch]")


def test_columns_become_nested_tensors_that_share_memory():
    image = np.zeros((2, 3), np.uint8)
    tensors = Batch({"obs": {"image": image}, "reward": [0.5, 1.0]}).to_torch()
    assert tensors["obs"]["image"].shape == (2, 3)
    tensors["obs"]["image"][0, 0] = 9
    assert image[0, 0] == 9


def test_a_read_only_column_is_copied_without_a_warning():
    array = np.zeros(2)
    array.flags.writeable = False
    tensor = Batch({"a": array}).to_torch()["a"]
    tensor[0] = 1
    assert array[0] == 0


def test_every_plain_dtype_converts():
    names = ["bool", *(f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64))]
    names += ["float16", "float32", "float64"]
    tensors = Batch({name: np.ones(2, name) for name in names}).to_torch()
    for name in names:
        assert str(tensors[name].dtype) == f"torch.{name}"
        assert tensors[name].tolist() == [1, 1]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_keep_their_bits_and_share_memory(name):
    array = np.array([1.5, -2, 0.25], getattr(ml_dtypes, name))
    tensor = Batch({"a": array}).to_torch()["a"]
    assert tensor.dtype == getattr(torch, name)
    assert tensor.float().tolist() == [1.5, -2, 0.25]
    assert tensor.data_ptr() == array.ctypes.data


def test_ragged_columns_become_values_and_offsets_and_text_stays_a_list():
    tensors = Batch({"t": [[1, 2], [3]], "s": ["a", "b"], "b": [b"a", b""]}).to_torch()
    assert isinstance(tensors["t"], RaggedTensor)
    assert tensors["t"].values.tolist() == [1, 2, 3]
    assert tensors["t"].offsets.tolist() == [0, 2, 3]
    assert (tensors["s"], tensors["b"]) == (["a", "b"], [b"a", b""])


def test_odd_strides_and_datetimes_convert():
    times = np.array([1, 2], "M8[us]")
    tensors = Batch({"back": np.arange(2)[::-1], "every": np.arange(4)[::2], "t": times}).to_torch()
    assert tensors["back"].tolist() == [1, 0]
    assert tensors["every"].tolist() == [0, 2]
    assert tensors["t"].tolist() == [1, 2]


def test_a_device_may_be_named():
    batch = Batch({"a": [1.0]}, shared={"p": {"q": [2]}})
    assert batch.to_torch(device="cpu")["a"].device.type == "cpu"
    assert batch.to_torch(device="meta")["a"].device.type == "meta"
    assert batch.shared.to_torch()["p"]["q"].tolist() == [2]


def test_tensors_are_accepted_as_columns():
    batch = Batch({"a": torch.arange(3), "b": [torch.zeros(2), torch.zeros(2), torch.zeros(2)]})
    assert batch["a"].tolist() == [0, 1, 2]
    assert batch["b"].shape == (3, 2)


@pytest.mark.parametrize("name", ["int4", "float6_e2m3fn"])
def test_a_dtype_that_torch_does_not_have_is_refused(name):
    with pytest.raises(SchemaError, match=f"'a' is {name}, which torch does not have"):
        Batch({"a": np.zeros(1, getattr(ml_dtypes, name))}).to_torch()


def test_without_torch_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"recollect\[torch\]"):
        Batch({"a": [1]}).to_torch()
