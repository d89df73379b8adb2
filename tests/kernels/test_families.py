"""What callers are told of kernels is what kernels are compiled for."""

import sys
import typing

import pytest
from numba import types

from recollect.kernels import families, load

PLAIN = {
    types.int64: int,
    types.uint64: int,
    types.float64: float,
    types.boolean: bool,
    types.none: None,
}
ARRAYS = {
    types.int64: families.Ints,
    types.uint64: families.Words,
    types.float64: families.Floats,
    types.int32: families.Int32s,
    types.int8: families.Int8s,
    types.uint8: families.Bytes,
    types.boolean: families.Flags,
    types.float32: families.Float32s,
}
FAMILIES = {
    "tables": (load.load, families.TableKernels),
    "steps": (load.load_steps, families.ReplayKernels),
    "tokens": (load.load_tokens, families.RolloutKernels),
    "packing": (load.load_packing, families.PackingKernels),
    "dealing": (load.load_dealing, families.DealingKernels),
}


def told(kind):
    """A type of Numba as Python calls it."""
    if isinstance(kind, types.Array):
        return ARRAYS[kind.dtype]
    if isinstance(kind, types.BaseTuple):
        return tuple[tuple(told(one) for one in kind.types)]
    return PLAIN[kind]


def check(declared, kernel):
    (signature,) = kernel.nopython_signatures
    arguments, result = typing.get_args(declared)
    assert result == told(signature.return_type)
    if arguments is not Ellipsis:
        for one, kind in zip(arguments, signature.args, strict=True):
            assert one in (typing.Any, families.State) or one == told(kind)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kernel_is_declared_as_it_is_compiled(family):
    loaded, protocol = FAMILIES[family]
    entries, modules = vars(loaded()), vars(load.FAMILIES[family]())
    groups = typing.get_type_hints(protocol)
    assert entries.keys() == groups.keys()
    for group, declared in groups.items():
        if modules[group] is None:
            assert sys.platform != "linux"
            continue
        if callable(entries[group]):
            check(declared, modules[group])
            continue
        kernels = typing.get_type_hints((typing.get_args(declared) or (declared,))[0])
        assert kernels.keys() == vars(entries[group]).keys()
        for name, kernel in kernels.items():
            check(kernel, getattr(modules[group], name))
