"""Runs every Python block of README.md and docs/, so that what a reader copies works.

The blocks of a page share one namespace and run from top to bottom, in an empty folder. Lines
that begin with `# > ` show what the block prints, and are compared with what it did print.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES = [page for page in PAGES if page.parent.name == "guides"]
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
SHOWN = "# > "


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
