"""How kernels are compiled: once per installation, with one signature each.

Modules of kernels are imported by `load` alone, when the first table is made; then everything
that `@kernel("...")` marked in them is compiled, by two processes where there is a second core.
Compiled code is kept in a folder whose name holds a hash of the kernels' sources, because Numba
does not notice when a function that a kernel calls has changed in another file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import llvmlite.binding
import numba
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

try:
    import fcntl
except ImportError:  # pragma: no cover - not a POSIX system: two processes may compile at once
    fcntl = None  # type: ignore[assignment]

INDEXES, ROWS, OTHERS = "indexes", "rows", "others"  # kinds of kernels
KERNELS = Path(__file__).parents[1]  # the folder with all kernels
PATIENCE = 2.0  # seconds of compiling before we say what is going on

ALIASES = {  # what signatures call the arrays that kernels take
    "float_table": "float64[:, ::1]",
    "table": "int64[:, ::1]",
    "floats": "float64[::1]",
    "ints": "int64[::1]",
    "words": "uint64[::1]",
}

_cached = False
_said = False  # whether the user knows that kernels are being compiled
_marked: list[tuple[str, Callable[[], None]]] = []  # of which kind, and what compiles it, once
_kernels: set[Any] = set()  # all that were marked


def _spelled(signature: str) -> str:
    """A signature in Numba's own words."""
    return re.sub("|".join(ALIASES), lambda name: ALIASES[name.group()], signature)


def kernel(
    signature: str, *, nogil: bool = False, indexes: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for one signature; one that leads through the `indexes` says so.

    Kernels that copy many rows run without the GIL. Those that run under a table's lock keep it:
    releasing it there would let every other thread in before the lock is free. Divisions are
    those of NumPy: a check for zero in each would keep loops from becoming vector code.
    """

    def mark(function: Callable[..., Any]) -> Any:
        module = function.__module__
        dispatcher = numba.njit(cache=_cached, nogil=nogil, error_model="numpy")(function)
        kind = ROWS if module.endswith((".rows", ".shared_copy")) else OTHERS
        kind = INDEXES if indexes else kind
        _marked.append((kind, _with_one_signature(dispatcher, signature)))
        _kernels.add(dispatcher)
        return dispatcher

    return mark


def inner(signature: str, *, hot: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that only kernels call.

    It has one signature too, because Numba would compile it anew for every literal argument;
    and it is compiled only when a kernel that calls it is, not when that comes from the cache.
    A `hot` one is laid into its callers: a call hands every array over as seven words.
    """

    def compile_when_called(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(  # type: ignore[call-overload]
            no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", forceinline=hot
        )(function)
        _with_one_signature(dispatcher, signature, within=True)
        return dispatcher

    return compile_when_called


def _with_one_signature(
    dispatcher: Any, signature: str, *, within: bool = False
) -> Callable[[], None]:
    """Have a function compiled for this signature only, when a kernel calls it or when told.

    What is laid `within` kernels is optimized with each of them, and only a little by itself.
    """
    resolve = dispatcher.get_call_template

    def compile_once() -> None:
        if not dispatcher.signatures:
            with _optimizing_little() if within else contextlib.nullcontext():
                dispatcher.compile(_spelled(signature))
            dispatcher.disable_compile()

    def resolve_once_compiled(arguments: Any, keywords: Any) -> Any:
        compile_once()
        return resolve(arguments, keywords)

    dispatcher.get_call_template = resolve_once_compiled
    return compile_once


@contextlib.contextmanager
def _optimizing_little() -> Iterator[None]:
    settings: Any = numba.config
    with global_compiler_lock:  # other threads compile with their own settings
        before = settings.OPT
        settings.OPT = type(before)(min(before, 1))
        try:
            yield
        finally:
            settings.OPT = before


def cache_folder() -> Path:
    """Where compiled kernels are kept: `RECOLLECT_CACHE_DIR`, or the user's cache folder."""
    chosen = os.environ.get("RECOLLECT_CACHE_DIR")
    if chosen:
        root = Path(chosen)
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        root = Path(base) / "recollect"
    digest = hashlib.sha256(numba.__version__.encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return root / f"kernels-{digest.hexdigest()[:16]}"


def _whose_code() -> str:
    """A hash of what Numba compares, beside sources, before it takes code from its cache: place,
    interpreter and processor. If one of them differs, it compiles again.
    """
    here = [str(KERNELS), sys.version, llvmlite.binding.get_host_cpu_name()]
    here += [str(source.stat().st_mtime_ns) for source in _sources()]
    return hashlib.sha256(" ".join(here).encode()).hexdigest()[:8]


def _sources() -> list[Path]:
    return sorted(KERNELS.rglob("*.py"))


def compiled(family: str, modules: Callable[[], SimpleNamespace]) -> SimpleNamespace:
    """Import a family of kernels and compile it, or read it from the cache.

    One process at a time does so, and tells the user if it is slow. A family that was compiled
    whole leaves a mark, so that nobody is told of compiling when only the disk is slow.
    """
    settings: Any = numba.config
    if settings.DISABLE_JIT:
        raise RuntimeError(
            "Recollect's kernels read memory by address and can't run as Python code: unset "
            "NUMBA_DISABLE_JIT"
        )
    folder = _writable_folder()
    with contextlib.ExitStack() as stack:
        if folder is not None:
            lock = stack.enter_context(open(folder / "lock", "wb"))
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            stack.enter_context(_cache_in(folder))
        mark = None if folder is None else folder / f"{family}-{_whose_code()}.compiled"
        helped = None
        if mark is None or not mark.exists():
            stack.enter_context(_a_word_if_slow(folder))
            if folder is not None:
                helped = stack.enter_context(_a_helper(family, folder))
        loaded = modules()
        if helped is not None:
            helped()
        for _, compile_once in _marked:
            compile_once()
        _marked.clear()
        if mark is not None:
            mark.touch()
    return loaded


def entry_point(found: Any) -> Any:
    """A kernel's compiled code, to be called as it is; for a module, those of its kernels.

    Numba would find out at every call what it was given, and which code that needs. A kernel has
    one signature, and the engine makes the arrays that it takes: nobody else calls it.
    """
    if isinstance(found, ModuleType):
        inside = f"{found.__name__}."
        kernels = {
            name: one
            for name, one in vars(found).items()
            if _is_kernel(one) and f"{one.__module__}.".startswith(inside)
        }
        return SimpleNamespace(**{name: entry_point(one) for name, one in kernels.items()})
    if not _is_kernel(found):
        return found
    (code,) = found.overloads.values()
    return code.entry_point


def _is_kernel(found: Any) -> bool:
    return isinstance(found, Dispatcher) and found in _kernels


@contextlib.contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    global _cached
    settings: Any = numba.config
    before = settings.CACHE_DIR
    _cached, settings.CACHE_DIR = True, str(folder)
    try:
        yield
    finally:
        settings.CACHE_DIR = before


@contextlib.contextmanager
def _a_word_if_slow(folder: Path | None) -> Iterator[None]:
    notice = threading.Timer(PATIENCE, _say_it_compiles, [folder])
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()


# -- two processes ------------------------------------------------------------------------------
# Numba compiles under one lock, so a thread would not help. Both processes go through the kernels
# and compile those for which they make a claim first: a file that only one of them can make. What
# the helper compiled is then read from the cache; what it did not, for whatever reason, is
# compiled here. Functions that only kernels call are compiled by each process that needs them. So
# the helper leaves alone what leads through the indexes, and begins with what copies rows: kernels
# of one kind share many such functions.
@contextlib.contextmanager
def _a_helper(family: str, folder: Path) -> Iterator[Callable[[], None] | None]:
    """Start a second process that compiles; yields what to call once the kernels are marked."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if (cores or 1) < 2 or not sys.executable or getattr(sys, "frozen", False):
        yield None
        return
    package = str(KERNELS.parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="claims-", dir=folder) as claims:
        helper = subprocess.Popen(
            [sys.executable, "-c", _HELP, family, str(folder), claims],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def share() -> None:
            if _compile_unclaimed(Path(claims), (INDEXES, OTHERS, ROWS)) < len(_marked):
                helper.wait()

        try:
            yield share
        finally:
            helper.kill()
            helper.wait()


_HELP = "import sys; from recollect.kernels.load import help_with; help_with(*sys.argv[1:])"


def compile_as_helper(modules: Callable[[], SimpleNamespace], folder: str, claims: str) -> None:
    """What the second process does."""
    with _cache_in(Path(folder)):
        modules()
        _compile_unclaimed(Path(claims), (ROWS, OTHERS))


def _compile_unclaimed(claims: Path, kinds: Sequence[str]) -> int:
    """Compile the kernels of some kinds that the other process has not claimed; how many?"""
    count = 0
    for kind in kinds:
        for number, (own, compile_once) in enumerate(_marked):
            if own != kind:
                continue
            try:
                (claims / str(number)).touch(exist_ok=False)
            except FileExistsError:
                continue
            compile_once()
            count += 1
    return count


def _writable_folder() -> Path | None:
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} is not writable")
    except (OSError, RuntimeError) as error:
        warnings.warn(
            f"Recollect has no folder for its compiled kernels ({error}), so every process compiles"
            " them anew; set RECOLLECT_CACHE_DIR to a writable folder.",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    return folder


def _say_it_compiles(folder: Path | None) -> None:
    global _said
    if _said:  # of another family
        return
    _said = True
    where = f"once per installation and kept in {folder}" if folder else "in every process"
    print(
        f"recollect: compiling kernels, which is done {where}",
        file=sys.stderr,
        flush=True,
    )
