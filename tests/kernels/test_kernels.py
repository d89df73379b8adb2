"""Kernels are compiled once per installation, by one process, with a word if it takes long.

Compiling takes many seconds, so the tests share one fresh cache folder and compile twice in all.
"""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

import recollect as rc
from recollect.kernels import load as kernels
from recollect.kernels.machine import compile as compiling

USE = """
import recollect as rc
table = rc.Table("t", capacity=8, sampler=rc.Prioritized(), seed=0)
table.insert({"x": [1, 2, 3], "t": ["a", "b", "c"]}, priority=[0.0, 1.0, 0.0])
print(table.sample(2)["x"].tolist())
"""
MESSAGE = "recollect: compiling kernels"


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "RECOLLECT_CACHE_DIR": str(folder)}


def start(folder: Path, *options: str, code: str = USE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *options, "-c", code],
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What a process wrote to stderr, after it did the right thing."""
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert out == "[2, 2]\n"
    return err


def seconds_of_children() -> float:
    """What processes that were waited for have computed; a busy machine does not change it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compiled(folder: Path) -> dict[Path, int]:
    """The files of compiled code, and when they were written."""
    return {f: f.stat().st_mtime_ns for f in folder.rglob("*") if f.suffix in (".nbi", ".nbc")}


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A cache that two processes, which began at once, have filled."""
    folder = tmp_path_factory.mktemp("cache")
    both = [start(folder) for _ in range(2)]
    said = [finish(process) for process in both]
    return folder, said


def test_two_processes_that_begin_at_once_compile_once(warm):
    folder, _ = warm
    files = compiled(folder)
    assert files
    indexes = [file for file in files if file.suffix == ".nbi"]
    data = [file for file in files if file.suffix == ".nbc"]
    assert len(data) == len(indexes)  # a kernel that two compiled would have two
    assert not list(folder.rglob("claims-*"))


def test_whoever_waits_longer_than_two_seconds_is_told_why(warm):
    folder, said = warm
    assert any(MESSAGE in words for words in said)
    for words in said:
        assert words.count(MESSAGE) <= 1
        if words:
            assert str(folder) in words
            assert len(words.splitlines()) == 1


def test_a_second_process_does_not_compile_again_and_says_nothing(warm):
    folder, _ = warm
    before = compiled(folder)
    code = USE + (
        "import recollect.kernels.load as k\n"
        "hits = misses = 0\n"
        "k.load()\n"
        "for module in vars(k.FAMILIES['tables']()).values():\n"
        "    for name in dir(module):\n"
        "        stats = getattr(getattr(module, name), 'stats', None)\n"
        "        if stats is not None:\n"
        "            hits += sum(stats.cache_hits.values())\n"
        "            misses += sum(stats.cache_misses.values())\n"
        "import sys\n"
        "assert hits > 10 and misses == 0, (hits, misses)\n"
    )
    process = start(folder, "-W", "error", code=code)
    assert finish(process) == ""
    assert compiled(folder) == before


def test_a_cached_start_is_quick(warm):
    folder, _ = warm
    before = seconds_of_children()
    finish(start(folder))
    assert seconds_of_children() - before < 10  # compiling takes longer


def test_a_folder_that_cannot_be_written_falls_back_with_a_warning(tmp_path):
    """A file stands where the folder should be: nobody, root included, can write there."""
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    said = finish(start(blocked / "cache"))
    assert "RuntimeWarning" in said
    assert "RECOLLECT_CACHE_DIR" in said
    assert "every process compiles them anew" in said


def test_no_writable_folder_is_a_warning_that_says_what_to_do(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("RECOLLECT_CACHE_DIR", str(blocked / "cache"))
    with pytest.warns(RuntimeWarning, match="set RECOLLECT_CACHE_DIR to a writable folder"):
        assert compiling._writable_folder() is None


def test_a_read_only_folder_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.warns(RuntimeWarning, match="not writable"):
        assert compiling._writable_folder() is None


def test_a_quick_start_says_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "PATIENCE", 60.0)  # any machine is quick enough
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiling.compiled("tests", lambda: None)
    assert capsys.readouterr().err == ""


def test_a_slow_start_says_so_once_after_its_patience(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "PATIENCE", 0.05)
    monkeypatch.setattr(compiling, "_said", False)
    compiling.compiled("tests", lambda: time.sleep(0.3))
    compiling.compiled("other tests", lambda: time.sleep(0.3))
    assert capsys.readouterr().err.count(MESSAGE) == 1


def test_what_was_compiled_elsewhere_is_compiled_anew_and_said_so(capsys, tmp_path, monkeypatch):
    """Two installations of one version share a folder, and Numba looks at where sources are."""
    monkeypatch.setenv("RECOLLECT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "PATIENCE", 0.05)
    monkeypatch.setattr(compiling, "_said", False)
    compiling.compiled("tests", lambda: None)
    compiling.compiled("tests", lambda: time.sleep(0.3))  # it is there: only the disk is slow
    assert capsys.readouterr().err == ""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "compile.py").write_bytes(Path(compiling.__file__).read_bytes())
    folder = compiling.cache_folder()
    monkeypatch.setattr(compiling, "cache_folder", lambda: folder)
    monkeypatch.setattr(compiling, "KERNELS", elsewhere)
    compiling.compiled("tests", lambda: time.sleep(0.3))
    assert capsys.readouterr().err.count(MESSAGE) == 1


def test_patience_is_two_seconds():
    assert compiling.PATIENCE == 2.0


def test_the_folder_depends_on_the_sources_of_the_kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE_DIR", str(tmp_path))
    folder = compiling.cache_folder()
    assert folder.parent == tmp_path
    sources = tmp_path / "kernels"
    shutil.copytree(Path(kernels.__file__).parent, sources)
    monkeypatch.setattr(compiling, "KERNELS", sources)
    assert compiling.cache_folder() == folder
    with open(sources / "items.py", "a") as items:
        items.write("# changed\n")
    assert compiling.cache_folder() != folder


def test_the_users_cache_folder_is_the_default(monkeypatch, tmp_path):
    monkeypatch.delenv("RECOLLECT_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiling.cache_folder().parent == tmp_path / "recollect"


def test_kernels_are_loaded_once_per_process():
    rc.Table("t", capacity=1)
    assert kernels.load() is kernels.load()


def test_every_kernel_has_one_signature():
    kernels.load()
    found = 0
    for name, module in list(sys.modules.items()):
        if not name.startswith("recollect.kernels.") or ".machine." in name:
            continue
        for function in vars(module).values():
            if isinstance(function, Dispatcher) and function.__module__ == name:
                assert len(function.signatures) <= 1, function
                found += bool(function.signatures)
    assert found > 10


def test_a_kernel_is_called_by_its_entry_point():
    """Without Numba's look at what it is given; the code is the same."""
    modules = vars(kernels.FAMILIES["tables"]())
    for name, entries in vars(kernels.load()).items():
        assert vars(entries)
        for kernel, entry in vars(entries).items():
            assert entry is not getattr(modules[name], kernel)
    array = np.arange(3.0)
    expected = np.array([kernels.expected_array(array.dtype, ())], np.int64)
    given = [array]
    for fits in (modules["rows"].rows_that_fit, kernels.load().rows.rows_that_fit):
        assert fits(id(given), expected) == 3
    assert kernels.rows_that_fit is kernels.load().rows.rows_that_fit


def test_kernels_refuse_to_run_as_python():
    ended = subprocess.run(
        [sys.executable, "-c", USE],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "unset NUMBA_DISABLE_JIT" in ended.stderr


def test_the_lock_file_is_left_for_others(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOLLECT_CACHE_DIR", str(tmp_path))
    compiling.compiled("tests", lambda: None)
    (lock,) = tmp_path.rglob("lock")
    assert stat.S_ISREG(lock.stat().st_mode)


@pytest.mark.parametrize("claimed", [[], [0], [1], [0, 1]])
def test_what_a_second_process_claimed_and_did_not_compile_is_compiled(
    tmp_path, monkeypatch, claimed
):
    """The helper dies, in the middle of its work or before."""
    claim = f"import sys, os\nfor n in {claimed}: open(os.path.join(sys.argv[3], str(n)), 'w')\n"
    monkeypatch.setattr(compiling, "_HELP", claim + "os.kill(os.getpid(), 9)")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setenv("RECOLLECT_CACHE_DIR", str(tmp_path))

    def make():
        while claimed and len(list(tmp_path.rglob("claims-*/*"))) < len(claimed):
            time.sleep(0.01)

        @compiling.kernel("int64(int64)")
        def one_more(number):
            return number + 1

        @compiling.kernel("int64(int64)")
        def two_more(number):
            return number + 2

        return one_more, two_more

    one_more, two_more = compiling.compiled("tests", make)
    assert len(one_more.signatures) == len(two_more.signatures) == 1
    assert (one_more(1), two_more(1)) == (2, 3)
    assert not list(tmp_path.rglob("claims-*"))


def test_one_core_compiles_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setenv("RECOLLECT_CACHE_DIR", str(tmp_path))
    assert compiling.compiled("tests", lambda: "made") == "made"
