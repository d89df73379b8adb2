"""The page that a demo leaves: one file, its plots inside it."""

from __future__ import annotations

from html import escape
from pathlib import Path

from recollect.demo.life import Life
from recollect.demo.plots import bars, lines

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<link rel="icon" href="data:,">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }}
figure {{ display: inline-block; width: 27rem; max-width: 100%; margin: 0 1rem 1rem 0 }}
svg {{ width: 100%; font-size: 11px }} figcaption {{ font-weight: 600 }}
table {{ border-collapse: collapse }} td, th {{ padding: .2rem .8rem; border-bottom: 1px solid #ddd;
  text-align: left }} td:not(:first-child) {{ text-align: right }}
code {{ background: #f4f4f4; padding: .1rem .3rem }}
</style></head><body>
<h1>{title}</h1>
<p>{summary}</p>
{figures}
<h2>What became of all {noun}</h2>
{accounts}
<h2>What to try next</h2>
<ul>{advice}</ul>
</body></html>
"""


def write(
    path: Path, title: str, noun: str, histogram: str, life: Life, summary: str, advice: list[str]
) -> None:
    """Write the report of a run."""
    marks = {"kill -9": life.kills[0].at} if life.kills else {}
    solved = {
        name: [(look["at"], look["solved"][name]) for look in life.looks]
        for name in life.now.get("solved", {})
    }
    rewards = {
        name: life.rewards[name] for name in (*solved, *life.rewards) if name in life.rewards
    }
    stored = {"stored": [(look["at"], float(look["stored"])) for look in life.looks]}
    capacity = float(life.now.get("capacity") or 1)
    mean: dict[str, float] = {}
    for look in life.looks:
        for name, count in look["histogram"].items():
            mean[name] = mean.get(name, 0.0) + count / len(life.looks)
    mean = {name: mean[name] for name in sorted(mean, key=float)}
    figures = [
        ("Problems solved", lines(solved, x="seconds", y="share", top=1.0, marks=marks)),
        ("Mean reward of what was generated",
         lines(rewards, x="seconds", y="reward", top=1.0, marks=marks)),
        (f"{noun.capitalize()} in the buffer",
         lines(stored, x="seconds", y=noun, top=capacity, marks=marks)),
        (f"{histogram.capitalize()}, on average", bars(mean, x=histogram, y=noun)),
    ]  # fmt: skip
    shown = "".join(
        f"<figure><figcaption>{escape(name)}</figcaption>{plot}</figure>" for name, plot in figures
    )
    listed = "".join(f"<li>{escape(line)}</li>" for line in advice)
    page = PAGE.format(
        title=escape(title),
        summary=escape(summary),
        figures=shown,
        noun=escape(noun),
        accounts=_accounts(life),
        advice=listed,
    )
    path.write_text(page, "utf-8")


def _accounts(life: Life) -> str:
    accounts = life.ended.get("accounts", {})
    reasons = sorted({reason for account in accounts.values() for reason in account["left"]})
    head = ["task", "put", "stored", "leased", *reasons]
    rows = [
        [task, account["put"], account["stored"], account["leased"]]
        + [account["left"].get(reason, 0) for reason in reasons]
        for task, account in accounts.items()
    ]
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{cells}</tr>{body}</table>"
