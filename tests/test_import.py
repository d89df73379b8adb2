"""`import recollect` is light: it loads no optional package, no Numba, and compiles nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = (
    "numba", "llvmlite", "pandas", "torch", "yaml", "sqlalchemy", "psycopg", "zmq", "ray", "tqdm",
    "scipy", "matplotlib", "polars", "duckdb", "fsspec", "psutil", "pytest", "jax", "tensorflow",
    "unittest", "http.server", "multiprocessing.pool", "gymnasium", "minari", "h5py",
)  # fmt: skip


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has after running some code."""
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    return set(run.stdout.split())


@pytest.fixture(scope="module")
def base():
    return modules_after("import numpy, pyarrow, ml_dtypes")


@pytest.fixture(scope="module")
def imported():
    return modules_after("import recollect")


def test_import_loads_no_heavy_package(imported, base):
    loaded = imported - base
    assert not [name for name in HEAVY if name in loaded]


def test_import_loads_little_beside_numpy_and_pyarrow(imported, base):
    foreign = {
        name.partition(".")[0]
        for name in imported - base
        if not name.startswith(("recollect", "_", "xxhash"))
    }
    third_party = foreign - set(sys.stdlib_module_names)
    assert third_party <= {"numpy", "pyarrow", "ml_dtypes"}
    others = [name for name in imported - base if not name.startswith("recollect")]
    assert len(others) < 85  # asyncio is half of them
    assert len(imported - base) < 200


def test_import_loads_what_a_table_needs(imported):
    parts = (
        "recollect.rollouts",
        "recollect.replay",
        "recollect.durability",
        "recollect.storage.frame",
    )
    assert not [name for name in imported if name.startswith(parts)]


def test_what_is_imported_later_is_itself_and_found_once():
    import recollect as rc
    from recollect.rollouts.buffer import RolloutBuffer

    vars(rc).pop("RolloutBuffer", None)
    assert "RolloutBuffer" in dir(rc)
    assert rc.RolloutBuffer is RolloutBuffer
    assert vars(rc)["RolloutBuffer"] is RolloutBuffer


def test_import_loads_no_kernel(imported):
    kernels = {name for name in imported if name.startswith("recollect.kernels.")}
    light = ("layout", "steps_layout", "families", "load")  # numbers, types, and what loads later
    assert kernels <= {f"recollect.kernels.{name}" for name in light}


def test_import_starts_no_thread_and_warns_of_nothing():
    script = "import threading, recollect; print(threading.active_count())"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    assert (run.stdout, run.stderr) == ("1\n", "")


def test_describing_rules_and_batches_needs_no_kernel():
    code = (
        "import recollect as rc, numpy as np\n"
        "rc.Prioritized(), rc.Mixed([(rc.Fifo(), 1)]), rc.SampleToInsertRatio(1.0, 1, 5.0)\n"
        "rc.Batch({'x': np.arange(3), 't': ['a', 'b', 'c']}).to_arrow()\n"
        "rc.field('a') > 3, rc.parse('a > 3'), rc.Column('f4', (2,))"
    )
    assert "numba" not in modules_after(code)


def test_every_public_name_is_there():
    import recollect as rc

    for name in rc.__all__:
        assert getattr(rc, name) is not None
    assert sorted(rc.__all__) == sorted(set(rc.__all__))


def test_public_names_are_those_of_the_package():
    import recollect as rc

    public = {name for name in vars(rc) if not name.startswith("_")}
    submodules = {name for name in public if f"recollect.{name}" in sys.modules}
    assert public - submodules <= set(rc.__all__)


def test_neither_a_journal_nor_a_snapshot_waits_for_pandas(tmp_path: Path) -> None:
    """pyarrow imports it to look at what it is given, which takes a second the first time."""
    program = """
import sys, numpy as np, recollect as rc
from recollect import Journal
journal = Journal("journal", sync="always")
table = rc.Table("t", capacity=9, journal=journal, sampler=rc.Prioritized())
table.insert({"x": np.zeros(3), "name": ["a", "b", "c"]}, task=["a", "b", "b"])
store = rc.Store([table])
store.save("s", step=1)
table.insert({"x": np.ones(2), "name": ["d", "e"]}, task="a")
store.save("s", step=2)
again = rc.Store([rc.Table("t", capacity=9, sampler=rc.Prioritized())])
again.load("s")
assert len(again["t"]) == 5
steps = rc.ReplayBuffer(9)
steps.add(obs=[0.0], reward=1.0, terminated=True)
steps.save("steps")
rollouts = rc.RolloutBuffer(journal="rollouts").sync
group = rc.Group([rc.Rollout([1], [2], finish_reason="stop", blobs={"i": [b"x"]})], task="m")
rollouts.put(group, version=0)
rollouts.save("saved")
rollouts.close()
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def test_a_misspelt_name_is_told_with_what_may_be_meant():
    script = "import recollect as rc\nrc.Tabel"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    said = "module 'recollect' has no attribute 'Tabel'. Did you mean: 'Table'?"
    assert run.stderr.splitlines()[-1] == f"AttributeError: {said}"
