"""Runs every Python block of README.md and docs/, so that what a reader copies works.

The blocks of a page share one namespace and run from top to bottom, in an empty folder. Lines
that begin with `# > ` show what the block prints, and are compared with what it did print.

The pages for those who change the code name files, layers and meanings: these must be true, too.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES = [page for page in PAGES if page.parent.name == "guides"]
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
SHOWN = "# > "

SOURCE = ROOT / "src" / "recollect"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
OVERVIEW = ROOT / "docs" / "architecture.md"
FOR_DEVELOPERS = [CONTRIBUTING, OVERVIEW, *sorted((ROOT / "docs" / "architecture").glob("*.md"))]
LONGEST_LINE = 120
# Paths such as `table/core.py` and `rules/query/`.
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/(?:[\w-]+\.[a-z]+)?)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page where the text begins."""

    info: str
    text: str
    line: int


def blocks(markdown: str) -> list[Block]:
    """Find the fenced blocks of a page, in order."""
    found: list[Block] = []
    opened: re.Match[str] | None = None
    first = 0
    lines = markdown.splitlines()
    for number, line in enumerate(lines, start=1):
        match = FENCE.match(line)
        if opened is None and match:
            opened, first = match, number + 1
        elif opened is not None and line.strip() == opened["fence"]:
            indent = len(opened["indent"])
            text = "\n".join(part[indent:] for part in lines[first - 1 : number - 1])
            found.append(Block(opened["info"].strip(), text + "\n", first))
            opened = None
    assert opened is None, f"the block that begins before line {first} has no end"
    return found


def is_python(block: Block) -> bool:
    return "py" in block.info.lower()


def has_python(page: Path) -> bool:
    return any(map(is_python, blocks(page.read_text("utf-8"))))


def shown(block: Block) -> str:
    """What the block says that it prints."""
    lines = [line for line in block.text.splitlines() if (line + " ").startswith(SHOWN)]
    return "".join(line[len(SHOWN) :] + "\n" for line in lines)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if has_python(page)], ids=name)
def test_examples_of_a_page_run_and_print_what_they_show(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in filter(is_python, blocks(page.read_text("utf-8"))):
        where = f"{name(page)}:{block.line}"
        assert block.info == "python", f"{where}: every Python block runs; write ```python"
        # Empty lines before the text make line numbers in tracebacks those of the page.
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
        exec(code, namespace)
        printed = capsys.readouterr().out
        if expected := shown(block):
            assert printed == expected, f"{where}: prints something else than it shows"
        else:
            assert not printed, f"{where}: prints, and does not show what, in lines with {SHOWN!r}"


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_a_guide_has_examples(page: Path) -> None:
    assert has_python(page)


def test_blocks_are_found_with_their_lines() -> None:
    page = "one\n```python\na = 1\n```\n\n    ```python\n    b = 2\n    ```\n```sh\nls\n```\n"
    assert blocks(page) == [
        Block("python", "a = 1\n", 3),
        Block("python", "b = 2\n", 7),
        Block("sh", "ls\n", 10),
    ]


def _scores(example: str) -> list[list[float]]:
    """The learning curves that runs of an example wrote, one for each of the seeds 0 to 4."""
    folder = ROOT / "docs" / "curves" / "seeds"
    curves = [json.loads((folder / f"{example}-{seed}.json").read_text()) for seed in range(5)]
    return [[score for _, score in curve["points"]] for curve in curves]


def test_the_table_of_seeds_shows_what_the_runs_wrote() -> None:
    quarters = [scores[-(len(scores) // 4) :] for scores in _scores("dqn_cartpole")]
    shown = " | ".join(f"{sum(last) / len(last):.0f}" for last in quarters)
    assert f"| score | {shown} |" in (ROOT / "docs/guides/transitions.md").read_text()


def test_the_recurrent_agent_is_right_where_its_page_says_so() -> None:
    for scores in _scores("recurrent_memory"):
        assert set(scores[len(scores) // 2 :]) == {1.0}


# -- pages for those who change the code ----------------------------------------------------------
def constant(test: str, wanted: str) -> Any:
    """What a test file assigns to a name."""
    for node in ast.parse((ROOT / "tests" / test).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == wanted:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{test} has no {wanted}")


def is_ours(path: str) -> bool:
    """Whether a path begins with a folder of the checkout or of the package."""
    first = path.split("/")[0]
    return any((base / first).is_dir() for base in (ROOT, SOURCE))


@pytest.mark.parametrize("page", FOR_DEVELOPERS, ids=name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    paths = filter(is_ours, PATH.findall(page.read_text("utf-8")))
    missing = [path for path in paths if not any((b / path).exists() for b in (ROOT, SOURCE))]
    assert not missing


@pytest.mark.parametrize("page", FOR_DEVELOPERS, ids=name)
def test_lines_of_a_page_are_short(page: Path) -> None:
    lines = enumerate(page.read_text("utf-8").splitlines(), start=1)
    assert not [number for number, line in lines if len(line) > LONGEST_LINE]


def test_the_drawing_shows_the_layers_that_are_held() -> None:
    drawing = next(block for block in blocks(OVERVIEW.read_text("utf-8")) if block.info == "text")
    drawn = [re.split(r"\s{4,}(?=\S+ \S)", line)[0].split() for line in drawing.text.splitlines()]
    layers = constant("test_layers.py", "LAYERS")
    assert drawn[::-1] == [layer for layer in layers if layer != ["__main__"]]


def test_the_table_of_folders_has_the_order_of_the_layers() -> None:
    section = CONTRIBUTING.read_text("utf-8").split("## Where things live")[1]
    cells = re.findall(r"^\| (`.*?`) \|", section.split("## ")[0], re.MULTILINE)
    listed = [folder for cell in cells for folder in re.findall(r"`(\w+)", cell)]
    layers = constant("test_layers.py", "LAYERS")
    assert listed == [folder for layer in layers for folder in layer if folder != "__main__"]


def test_file_names_that_mean_the_same_are_listed() -> None:
    section = CONTRIBUTING.read_text("utf-8").split("**One name, one meaning.**")[1]
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section.split("\n**")[0], re.MULTILINE))
    assert listed == constant("test_names.py", "SAME_MEANING")


def test_tests_mirror_the_folders_of_the_package() -> None:
    package = {file.parent.relative_to(SOURCE).parts[0] for file in SOURCE.glob("*/*.py")}
    tests = {file.relative_to(ROOT / "tests").parts[0] for file in ROOT.glob("tests/*/**/*.py")}
    assert package - tests == {"base", "testing"}  # which the page names
    assert tests - package == {"support"}


def test_examples_of_the_how_tos_run(tmp_path: Path) -> None:
    # in a process of their own: they define rules, and put functions in the place of kernels
    found = [block.text for block in blocks(CONTRIBUTING.read_text("utf-8")) if is_python(block)]
    assert len(found) > 1
    for text in found:
        subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True, timeout=240)
