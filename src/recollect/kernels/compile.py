"""How kernels are compiled: once per installation, with one signature each.

`@kernel("...")` compiles when its module is imported, and modules of kernels are imported by
`load` alone, when the first table is made. Compiled code is kept in a folder whose name holds
a hash of the kernels' sources, because Numba does not notice when a function that a kernel
calls has changed in another file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba

try:
    import fcntl
except ImportError:  # pragma: no cover - not a POSIX system: two processes may compile at once
    fcntl = None  # type: ignore[assignment]

PATIENCE = 2.0  # seconds of compiling before we say what is going on

ALIASES = {  # what signatures call the arrays that kernels take
    "float_table": "float64[:, ::1]",
    "table": "int64[:, ::1]",
    "floats": "float64[::1]",
    "ints": "int64[::1]",
    "words": "uint64[::1]",
}

_cached = False


def _spelled(signature: str) -> str:
    """A signature in Numba's own words."""
    return re.sub("|".join(ALIASES), lambda name: ALIASES[name.group()], signature)


def kernel(signature: str, *, nogil: bool | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for one signature.

    Kernels that copy rows run without the GIL. Those that run under a table's lock keep it:
    releasing it there would let every other thread in before the lock is free. Divisions are
    those of NumPy: a check for zero in each would keep loops from becoming vector code.
    """

    def compile_now(function: Callable[..., Any]) -> Any:
        release = function.__module__.endswith(".rows") if nogil is None else nogil
        return numba.njit(_spelled(signature), cache=_cached, nogil=release, error_model="numpy")(
            function
        )

    return compile_now


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
        resolve = dispatcher.get_call_template

        def resolve_once_compiled(arguments: Any, keywords: Any) -> Any:
            if not dispatcher.signatures:
                dispatcher.compile(_spelled(signature))
                dispatcher.disable_compile()
            return resolve(arguments, keywords)

        dispatcher.get_call_template = resolve_once_compiled
        return dispatcher

    return compile_when_called


def cache_folder() -> Path:
    """Where compiled kernels are kept: `RECOLLECT_CACHE_DIR`, or the user's cache folder."""
    chosen = os.environ.get("RECOLLECT_CACHE_DIR")
    if chosen:
        root = Path(chosen)
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        root = Path(base) / "recollect"
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return root / f"kernels-{digest.hexdigest()[:16]}"


@contextlib.contextmanager
def compiling(family: str) -> Iterator[None]:
    """Set up the cache for the imports inside: one process at a time, and a word if it is slow.

    A family of kernels that was compiled whole leaves a mark: then a slow disk is no reason to
    speak of compiling.
    """
    global _cached
    with contextlib.ExitStack() as stack:
        folder = _writable_folder()
        if folder is not None:
            lock = stack.enter_context(open(folder / "lock", "wb"))
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            _cached = True
            settings: Any = numba.config
            stack.callback(setattr, settings, "CACHE_DIR", settings.CACHE_DIR)
            settings.CACHE_DIR = str(folder)
        compiled = None if folder is None else folder / f"{family}.compiled"
        if compiled is None or not compiled.exists():
            notice = threading.Timer(PATIENCE, _say_it_compiles, [folder])
            notice.daemon = True
            notice.start()
            stack.callback(notice.cancel)
        yield
        if compiled is not None:
            compiled.touch()


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
    where = f"once per installation and kept in {folder}" if folder else "in every process"
    print(
        f"recollect: compiling kernels, which is done {where}",
        file=sys.stderr,
        flush=True,
    )
