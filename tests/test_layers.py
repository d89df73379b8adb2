"""Every folder imports only those below it, and no modules import each other in a circle.

All kinds of imports count: at the top of a module, inside a function, for types alone, relative,
by `importlib`, and through the package itself. `base/registry.py` is the one way up.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

# Lowest first. Those in one line do not import each other.
LAYERS = [
    ["errors"],
    ["base"],
    ["kernels"],
    ["data"],
    ["rules"],
    ["storage"],
    ["durability"],
    ["table"],
    ["replay", "rollouts"],
    ["store"],
    ["ranks"],
    ["config"],
    ["production", "training"],
    ["simulation", "testing"],
    ["demo"],
    ["cli"],
    ["__main__"],
]
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}

PACKAGE = "recollect"
# Who may import what its source does not name: the way up, and packages of others.
UNNAMED = {f"{PACKAGE}.base.registry", f"{PACKAGE}.base.optional"}
IMPORTERS = ("import_module", "__import__", "optional")

SOURCE = Path(__file__).parents[1] / "src"


class Module(NamedTuple):
    """A module of the package: where it is, and what it says."""

    path: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")


class Import(NamedTuple):
    """An import: who, whom ('' where the source does not say), and where."""

    source: str
    target: str
    place: str


Modules = Mapping[str, Module]


# -- the checker ----------------------------------------------------------------------------------
def modules_in(sources: Mapping[str, str]) -> dict[str, Module]:
    """Modules by their dotted name, of their sources by path."""
    found = {}
    for path, text in sources.items():
        parts = path.removesuffix(".py").split("/")
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(path, ast.parse(text))
    return found


def imports_of(name: str, modules: Modules) -> Iterator[Import]:
    """All imports of the package's own modules in one of them, also those inside functions."""
    module = modules[name]
    for node in ast.walk(module.tree):
        for target in dict.fromkeys(_targets(node, name, modules)):
            yield Import(name, target, f"{module.path}:{getattr(node, 'lineno', 0)}")


def _targets(node: ast.AST, name: str, modules: Modules) -> list[str]:
    if isinstance(node, ast.Import):
        own = [alias for alias in node.names if _is_own(alias.name)]
        # Without a name of its own, `import recollect.table` binds the whole package.
        return [PACKAGE if alias.asname is None else alias.name for alias in own]
    if isinstance(node, ast.ImportFrom):
        base = _absolute(node, name, modules)
        if not _is_own(base):
            return []
        named = [f"{base}.{alias.name}" for alias in node.names]
        return [each if each in modules else base for each in named]
    if isinstance(node, ast.Call) and node.args and _called(node) in IMPORTERS:
        return _by_text(node.args[0], modules)
    return []


def _is_own(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _absolute(node: ast.ImportFrom, name: str, modules: Modules) -> str:
    if not node.level:
        return node.module or ""
    parts = name.split(".")
    up = node.level - modules[name].is_package
    return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def _by_text(argument: ast.expr, modules: Modules) -> list[str]:
    """What a call with a name imports: of an f-string, everything that begins as it does."""
    if isinstance(argument, ast.Constant):
        return [argument.value] if _is_own(str(argument.value)) else []
    start = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
    if not isinstance(start, ast.Constant):
        return [""]
    return [each for each in modules if each.startswith(str(start.value))]


def layer_of(name: str) -> str:
    """The folder, or the module of the top folder, that a module belongs to."""
    return name.split(".")[1] if "." in name else ""


def wrong_ways(modules: Modules) -> list[str]:
    """Imports that go up or to the side, or through the whole package."""
    found = []
    for name in sorted(set(modules) - {PACKAGE}):
        for one in imports_of(name, modules):
            mine, theirs = layer_of(name), layer_of(one.target)
            if not one.target:
                allowed = name in UNNAMED
            elif one.target == PACKAGE:
                allowed = False
            else:
                allowed = mine == theirs or RANKS.get(theirs, 99) < RANKS.get(mine, 99)
            if not allowed:
                found.append(f"{one.place} -> {one.target or 'a module that it does not name'}")
    return found


def cycles(modules: Modules) -> list[list[str]]:
    """Modules that import each other, directly or through others."""
    below = {
        name: {one.target for one in imports_of(name, modules) if one.target in modules} - {name}
        for name in modules
    }
    reached: dict[str, set[str]] = {}
    for name in modules:
        seen: set[str] = set()
        left = [name]
        while left:
            new = below[left.pop()] - seen
            seen |= new
            left += new
        reached[name] = seen
    together = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in modules
        if name in reached[name]
    }
    return sorted(map(list, together))


# -- the package ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def package() -> dict[str, Module]:
    files = sorted((SOURCE / PACKAGE).rglob("*.py"))
    return modules_in({str(file.relative_to(SOURCE)): file.read_text() for file in files})


def test_every_module_is_in_a_layer(package):
    assert {layer_of(name) for name in set(package) - {PACKAGE}} == set(RANKS)


def test_imports_go_down(package):
    found = wrong_ways(package)
    assert not found, "\n".join([f"{len(found)} imports go up or to the side:", *found])


def test_no_modules_import_each_other(package):
    found = cycles(package)
    assert not found, "\n".join(["modules that import each other:", *map(" ".join, found)])


def test_only_the_package_fills_the_registry(package):
    asking = [
        name
        for name in package
        if f"{PACKAGE}.base.registry" in {one.target for one in imports_of(name, package)}
    ]
    fillers = [name for name in asking if calls(package[name], "register")]
    assert fillers == [PACKAGE]
    for call in calls(package[PACKAGE], "register"):
        name, module = (ast.literal_eval(argument) for argument in call.args)
        assert name in {getattr(node, "name", "") for node in package[module].tree.body}


def calls(module: Module, function: str) -> list[ast.Call]:
    """The calls of a function, or method, of a name."""
    nodes = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    return [node for node in nodes if _called(node) == function]


# -- the checker itself, on sources that are made up ----------------------------------------------
def made_up(**sources: str) -> dict[str, Module]:
    """Modules of a package; `table__core` is `table/core.py`."""
    return modules_in(
        {f"{PACKAGE}/{name.replace('__', '/')}.py": text for name, text in sources.items()}
    )


UP = {
    "at the top": "from recollect.table.core import Core",
    "of a module": "from recollect.table import core",
    "lazy": "def load():\n    from recollect.table.core import Core",
    "for types": "if TYPE_CHECKING:\n    from recollect.table.core import Core",
    "relative": "from ..table.core import Core",
    "relative to a module": "from ..table import core",
    "by importlib": "importlib.import_module('recollect.table.core')",
    "by a function of it": "def load():\n    return import_module('recollect.table.core')",
    "by an f-string": "def load(name):\n    import_module(f'recollect.table.{name}')",
    "by __import__": "__import__('recollect.table.core')",
    "under a name": "import recollect.table.core as core",
}


@pytest.mark.parametrize("text", UP.values(), ids=UP)
def test_the_checker_finds_an_import_that_goes_up(text):
    line = text.count("\n") + 1
    modules = made_up(table__core="", data__batch=text)
    assert wrong_ways(modules) == [f"recollect/data/batch.py:{line} -> recollect.table.core"]
    assert not wrong_ways(made_up(table__core=text, table__other="", data__batch=""))


@pytest.mark.parametrize(
    "text",
    ["import recollect", "import recollect as rc", "from recollect import Table",
     "def load():\n    import recollect.errors", "from .. import Table"],
)  # fmt: skip
def test_the_checker_finds_the_package_itself(text):
    modules = made_up(errors="", data__batch=text)
    assert [found.rpartition(" ")[2] for found in wrong_ways(modules)] == [PACKAGE]


def test_the_checker_finds_siblings():
    modules = made_up(replay__buffer="from recollect.rollouts import core", rollouts__core="")
    assert wrong_ways(modules) == ["recollect/replay/buffer.py:1 -> recollect.rollouts.core"]


def test_the_checker_finds_what_is_imported_by_a_name_that_comes_from_elsewhere():
    text = "def load(name):\n    return import_module(name)"
    assert len(wrong_ways(made_up(data__batch=text))) == 1
    assert not wrong_ways(made_up(base__registry=text))


def test_the_checker_lets_imports_go_down():
    text = "import numpy\nfrom recollect import errors\nfrom recollect.data.batch import Batch"
    assert not wrong_ways(made_up(errors="", data__batch="", table__core=text))


def test_the_checker_finds_circles_of_every_kind():
    modules = made_up(
        data__a="from recollect.data import b",
        data__b="def load():\n    from .c import C",
        data__c="if TYPE_CHECKING:\n    from recollect.data.a import A",
        data__d="from recollect.data import a",
    )
    assert cycles(modules) == [["recollect.data.a", "recollect.data.b", "recollect.data.c"]]
