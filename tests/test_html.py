"""What notebooks show: sizes, tasks by status, histograms; nothing is changed by looking."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

import recollect as rc
from recollect.base.html import BINS, LOOKED_AT, sparkline

VOID = {"rect", "br"}


class Parsed(HTMLParser):
    """Text and attributes of a piece of HTML, whose elements must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def filled(n=100, **options):
    table = rc.Table("replay", capacity=200, sampler=rc.Prioritized(), seed=0, **options)
    table.insert({"obs": np.zeros((n, 3), "float32")}, priority=np.linspace(0.1, 9.0, n))
    return table


def test_a_table_shows_its_size_rules_columns_and_histograms():
    shown = Parsed(filled()._repr_html_())
    text = " ".join(shown.text)
    for part in ("Table 'replay'", "100 of 200 items", "1.2 kB", "Prioritized", "obs", "float32"):
        assert part in text
    labels = [attributes["aria-label"] for attributes in shown.all("svg")]
    assert labels == ["priority from 0.1 to 9", "times sampled from 0 to 0"]
    assert shown.all("progress")[0]["value"] == "100"


def test_looking_changes_nothing():
    table = filled()
    before, draws = table.stats(), filled()
    table._repr_html_()
    repr(table)
    assert table.stats() == before
    assert (table.sample(9).info.keys & 0xFFF == draws.sample(9).info.keys & 0xFFF).all()


def test_an_empty_table_shows_itself():
    assert "0 of 200 items" in " ".join(Parsed(rc.Table("t", capacity=200)._repr_html_()).text)


@pytest.mark.parametrize("n", [LOOKED_AT - 1, LOOKED_AT + 1, 20 * LOOKED_AT])
def test_of_a_large_table_some_items_are_looked_at(n, monkeypatch):
    table = rc.Table("t", capacity=n)
    table.insert({"x": np.zeros(n)}, priority=np.arange(1.0, n + 1))
    asked = []
    get = table.core.storage.get
    monkeypatch.setattr(
        table.core.storage, "get", lambda keys, c: asked.append(keys.size) or get(keys, c)
    )
    table._repr_html_()
    assert LOOKED_AT / 2 <= asked[0] <= LOOKED_AT


def test_rollouts_show_tasks_by_status_and_lags():
    buffer = rc.RolloutBuffer(staleness=rc.Staleness(max_staleness=9), capacity=8)
    for version, task in enumerate(("math", "math", "<b>code</b>")):
        reason = "stop" if version else "abort"
        rollout = rc.Rollout([1], [2, 3], finish_reason=reason)
        buffer.sync.put(rc.Group([rollout], task=task), version=version)
    buffer.sync.advance(5)
    shown = Parsed(buffer._repr_html_())
    text = " ".join(shown.text)
    assert "3 of 8 groups" in text
    assert "<b>code</b>" in text  # as text: what users call a task is never markup
    assert ("COMPLETED" in text, "ABORTED" in text, "FAILED" in text) == (True, True, False)
    assert shown.all("svg")[0]["aria-label"] == "lag from 2 to 4"
    assert repr(buffer).startswith("RolloutBuffer(3 groups: 1 math ABORTED, 1 math COMPLETED")


def test_replay_buffers_and_stores_show_themselves():
    buffer = rc.ReplayBuffer(100, seed=0)
    for t in range(30):
        buffer.add(obs=[0.0], reward=1.0, terminated=t % 10 == 9)
    labels = [a["aria-label"] for a in Parsed(buffer._repr_html_()).all("svg")]
    assert labels == ["length from 10 to 10", "return from 10 to 10"]
    store = rc.Store([filled(), rc.Table("other", capacity=3)])
    text = " ".join(Parsed(store._repr_html_()).text)
    assert "Table 'replay'" in text
    assert "Table 'other'" in text


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], 0), ([np.nan], 0), ([3.0], 1), ([0, 1, 1, 4], 3), (np.linspace(0, 1, 1000), BINS)],
)
def test_a_histogram_has_a_bar_for_each_bin_with_something_in_it(values, bars):
    assert len(Parsed(sparkline(values, "x")).all("rect")) == bars


def test_a_histogram_of_infinite_values_shows_the_others():
    assert Parsed(sparkline([1.0, 2.0, np.inf], "x")).all("svg")[0]["aria-label"] == "x from 1 to 2"


def test_what_was_closed_says_so_and_still_shows_itself():
    table, steps, groups = rc.Table("t", capacity=3), rc.ReplayBuffer(4), rc.RolloutBuffer()
    table.insert({"x": [1.0]})
    for one in (table, steps, groups):
        assert "closed" not in repr(one)
        one.close()
    assert repr(table).startswith("Table('t', closed, 1/3 items, ")
    assert repr(steps).startswith("ReplayBuffer(closed, 0/4 steps of 1 environment, ")
    assert repr(groups) == "RolloutBuffer(closed)"
    assert repr(groups.sync) == "RolloutBuffer(closed).sync"
    for one in (table, steps, groups, groups.sync):
        assert "make a new one to go on" in Parsed(one._repr_html_()).text


def test_the_blocking_face_shows_the_same():
    buffer = rc.RolloutBuffer()
    buffer.sync.put(rc.Group([rc.Rollout([1], [2], finish_reason="stop")], task="math"), version=0)
    assert repr(buffer).startswith("RolloutBuffer(1 group: 1 math COMPLETED; ")
    assert repr(buffer.sync) == f"{buffer!r}.sync"
    assert buffer.sync._repr_html_() == buffer._repr_html_()
