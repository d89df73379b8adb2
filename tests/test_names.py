"""One name, one meaning: of classes, and of files in different folders."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "recollect"

# Files that are called alike because they are the same thing in each folder.
SAME_MEANING = {
    "actor": "what runs in an actor of Ray, and its handle",
    "base": "what all of the folder derive from, or have in common",
    "blocking": "the calls of a face for threads, which block where others await",
    "buffer": "the buffer that users hold",
    "choice": "which items a selector chooses",
    "chosen": "items that were chosen, and how they are read",
    "core": "the state behind a face, under public names, and the verbs on it",
    "indexes": "what finds items by an order or a weight; `kernels` has the loops of it",
    "items": "the items of a storage; `kernels` has the loops of it",
    "journaled": "how a member writes a journal, and comes back from it",
    "orders": "how items are ordered; `kernels` has the loops of it",
    "persistence": "how a buffer is saved and loaded",
    "rows": "rows in segments; `kernels` has the loops of it",
    "storage": "the storage itself",
}
# Classes that users import from different modules, where each is the plain word.
PUBLIC_IN_TWO_MODULES = {
    "Queue",  # rc.Queue limits a table; training.Queue trains each group once
    "Window",  # production.Window and training.Window: what one of them saw since the last look
}


def test_a_class_name_has_one_meaning():
    places = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file.relative_to(PACKAGE)}:{node.lineno}")
    twice = {
        name: found
        for name, found in places.items()
        if len(found) > 1 and name not in PUBLIC_IN_TWO_MODULES
    }
    assert not twice, "\n".join(f"{name}: {', '.join(found)}" for name, found in twice.items())


def test_a_file_name_has_one_meaning():
    folders = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        if not file.stem.startswith("__"):
            folders[file.stem].append(str(file.parent.relative_to(PACKAGE)))
    several = {name: found for name, found in folders.items() if len(found) > 1}
    unexplained = {name: found for name, found in several.items() if name not in SAME_MEANING}
    assert not unexplained, unexplained
    assert not SAME_MEANING.keys() - several.keys(), "these are in one folder only"
