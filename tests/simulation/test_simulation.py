"""Simulated training runs: nothing is lost, the numbers are those that one can work out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import recollect as rc
from recollect.simulation import Scenario, TaskModel, render, run, simulate
from recollect.simulation.simulator import Simulation

EVEN = {"t": TaskModel(sigma=0, median_tokens=1000)}  # 1000 tokens each: 20 s at 50 per second
HARD = {
    "math": TaskModel(
        weight=2, median_tokens=2000, failure=0.01, abort=0.01, straggler=0.05, filtered=0.2
    ),
    "code": TaskModel(weight=1, median_tokens=600, sigma=1.2, reward_seconds=3, filtered=0.05),
}


def scenario(**options):
    given = {"batch_size": 8, "group_size": 4, "slots": 64, "steps": 30, "tokens_per_cell": 100}
    return Scenario(**{**given, **options})


# -- by hand


def test_a_colocated_step_takes_generation_training_and_sync_one_after_another():
    report = simulate(
        scenario(
            arrangement="colocated", strategy="sync", tasks=EVEN, train_seconds=60, sync_seconds=5
        )
    )
    assert report.seconds == pytest.approx(30 * (20 + 60 + 5))
    assert report.waiting == pytest.approx(20 / 85)
    assert report.training == pytest.approx(60 / 85)
    assert report.syncing == pytest.approx(5 / 85)
    assert report.lags == {0: 30 * 8 * 4 * 1000}
    assert report.waste == {}
    assert report.slots_busy == pytest.approx(32 * 20 / (85 * 64))


def test_too_few_slots_make_rounds():
    report = simulate(scenario(arrangement="colocated", strategy="sync", tasks=EVEN, slots=8))
    assert report.waiting * report.step_seconds == pytest.approx(4 * 20)  # 32 responses on 8 slots
    assert report.slots_busy == pytest.approx(80 / report.step_seconds)


def test_a_disaggregated_trainer_that_is_slower_waits_for_the_first_batch_only():
    report = simulate(
        scenario(
            tasks=EVEN, staleness=rc.Staleness(1), sync="running", train_seconds=60, sync_seconds=0
        )
    )
    assert report.waiting * report.seconds == pytest.approx(20)
    assert report.seconds == pytest.approx(20 + 30 * 60)
    assert set(report.group_lags) <= {0, 1}


def test_generation_that_is_slower_is_waited_for_at_every_step():
    report = simulate(
        scenario(tasks=EVEN, slots=8, staleness=rc.Staleness(1), sync="running", train_seconds=1,
                 sync_seconds=0)
    )  # fmt: skip
    assert report.step_seconds >= 0.95 * 80  # 32 responses of 20 s on 8 slots
    assert report.waiting > 0.9
    assert report.slots_busy > 0.9


def test_without_staleness_everything_is_on_policy():
    report = simulate(scenario(tasks=HARD, staleness=rc.Staleness(0)))
    assert set(report.group_lags) == {0}


@pytest.mark.parametrize("sync_interval", [1, 3])
@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_nothing_trains_beyond_the_threshold(max_staleness, sync_interval):
    rule = rc.Staleness(max_staleness, sync_interval)
    report = simulate(
        scenario(tasks=HARD, staleness=rule, keep_partial=True, over_sample=1.0, train_seconds=20)
    )
    assert max(report.group_lags) < rule.threshold
    assert sum(report.group_lags.values()) == 30 * 8


def test_sync_interval_two_trains_on_versions_two_steps_apart():
    report = simulate(
        scenario(arrangement="colocated", strategy="sync", tasks=EVEN, steps=10,
                 staleness=rc.Staleness(0, sync_interval=2))
    )  # fmt: skip
    assert report.group_lags == {0: 40, 1: 40}


# -- accounts


VARIANTS = [
    {"arrangement": "colocated"},
    {"arrangement": "colocated", "strategy": "sync"},
    {"arrangement": "colocated", "over_sample": 0.5, "keep_partial": True},
    {"sync": "pause"},
    {"sync": "pause", "keep_partial": True, "over_sample": 1.0},
    {"sync": "running", "staleness": rc.Staleness(1)},
    {"sync": "running", "staleness": rc.Staleness(1), "abort_hopeless": True},
    {"sync": "running", "staleness": rc.Staleness(2, on_expire="discard"), "over_sample": 1.0},
    {"sync": "pause", "staleness": rc.Staleness(1, max_retries=1), "retry_trigger": 3},
    {"sync": "pause", "staleness": rc.Staleness(1, 2), "drain_timeout": 10.0},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_token_trained_or_is_accounted_as_waste(variant):
    report = simulate(scenario(tasks=HARD, train_seconds=20, **variant))
    assert report.steps == 30
    assert report.trained + sum(report.waste.values()) == report.generated
    assert all(tokens > 0 for tokens in report.waste.values())
    assert sum(report.lags.values()) == report.trained
    assert sum(report.group_lags.values()) == 30 * 8
    assert report.training + report.waiting + report.syncing == pytest.approx(1)
    assert 0 < report.slots_busy <= 1
    assert report.waste["filtered"] > 0
    assert report.waste["failed"] > 0
    assert sum(task.groups for task in report.tasks.values()) == 30 * 8
    assert sum(task.waited_for for task in report.tasks.values()) == pytest.approx(
        report.waiting * report.seconds
    )


def check_accounts_in_any_order(seed, steps):
    for variant in VARIANTS:
        tried = scenario(tasks=HARD, train_seconds=20, seed=seed, **{**variant, "steps": steps})

        async def main(tried=tried):
            return await Simulation(tried).run()

        report = run(main(), seed=seed)  # tasks take their turns at random
        assert report.trained + sum(report.waste.values()) == report.generated
        assert all(tokens > 0 for tokens in report.waste.values())
        assert max(report.group_lags) < tried.staleness.threshold


@pytest.mark.parametrize("seed", range(3))
def test_every_token_is_accounted_in_any_order_of_events(seed):
    check_accounts_in_any_order(seed, steps=5)


@pytest.mark.soak
def test_every_token_is_accounted_in_many_orders_of_events():
    for seed in range(100, 200):
        check_accounts_in_any_order(seed, steps=8)


def test_expired_tokens_are_those_that_left_the_buffer_as_expired():
    async def main():
        rule = rc.Staleness(1, on_expire="discard")
        simulation = Simulation(scenario(tasks=HARD, staleness=rule, over_sample=2.0, steps=20))
        events = simulation.buffer.events("expired", keep=None)
        report = await simulation.run()
        await events.aclose()
        left = [event.group async for batch in events for event in batch]
        return report, sum(rollout.num_tokens for group in left for rollout in group)

    report, cells = run(main())
    assert report.waste["expired"] == cells * 100 > 0


@pytest.mark.parametrize("variant", VARIANTS[:6], ids=str)
def test_the_same_scenario_gives_the_same_report(variant):
    tried = scenario(tasks=HARD, steps=15, **variant)
    assert simulate(tried).to_dict() == simulate(tried).to_dict()
    assert simulate(replace(tried, seed=1)).to_dict() != simulate(tried).to_dict()


def test_partial_responses_that_are_kept_are_not_aborted_waste():
    tried = scenario(tasks=HARD, staleness=rc.Staleness(2), train_seconds=10)
    dropped, kept = simulate(tried), simulate(replace(tried, keep_partial=True))
    assert dropped.waste["aborted"] > 0
    assert "aborted" not in kept.waste
    assert kept.trained / kept.generated > dropped.trained / dropped.generated


def test_new_weights_without_draining_abort_nothing():
    report = simulate(scenario(tasks={"t": TaskModel()}, staleness=rc.Staleness(3), sync="running"))
    assert not {"aborted", "cancelled"} & set(report.waste)


def test_more_staleness_makes_the_trainer_wait_less():
    waits = [
        simulate(
            scenario(tasks={"t": TaskModel(sigma=1.0)}, staleness=rc.Staleness(allowed),
                     train_seconds=200, sync="running", slots=400)
        ).waiting
        for allowed in (0, 1, 4)
    ]  # fmt: skip
    assert waits[0] > waits[1] > waits[2]


# -- tasks


def test_every_task_has_the_share_of_its_weight():
    report = simulate(scenario(tasks=HARD, batch_size=9, staleness=rc.Staleness(1)))
    assert {name: task.groups for name, task in report.tasks.items()} == {"math": 180, "code": 90}
    assert report.fairness == pytest.approx(1)
    assert report.tasks["math"].share == pytest.approx(report.tasks["math"].weight)


def test_the_slow_task_is_the_one_that_is_waited_for():
    tasks = {"long": TaskModel(median_tokens=4000, sigma=0), "short": TaskModel(median_tokens=400)}
    report = simulate(scenario(tasks=tasks, slots=400, train_seconds=1))
    assert report.tasks["long"].waited_for > 0.9 * report.waiting * report.seconds
    assert report.tasks["long"].seconds["p50"] > report.tasks["short"].seconds["p50"]


def test_stragglers_are_waited_for():
    calm = scenario(tasks=EVEN, arrangement="colocated", strategy="sync")
    slow = replace(calm, tasks={"t": replace(EVEN["t"], straggler=0.05, slowdown=5)})
    assert simulate(slow).waiting > 1.5 * simulate(calm).waiting


def test_more_than_a_thousand_steps():
    report = simulate(
        scenario(batch_size=4, group_size=1, slots=16, steps=1200, tokens_per_cell=500,
                 staleness=rc.Staleness(1), sync="running", tasks=HARD)
    )  # fmt: skip
    assert report.steps == 1200
    assert sum(report.group_lags.values()) == 4_800
    assert report.trained + sum(report.waste.values()) == report.generated


# -- saying it


def test_a_report_reads_well():
    text = str(simulate(scenario(tasks=HARD, staleness=rc.Staleness(1))))
    for words in ("seconds per step", "trainer waits for a batch", "lag 0", "math: groups"):
        assert words in text


def test_two_reports_stand_side_by_side_with_the_change():
    tried = scenario(tasks=EVEN)
    reports = [simulate(tried), simulate(replace(tried, train_seconds=120))]
    lines = render([("short", reports[0]), ("long", reports[1])]).splitlines()
    assert lines[0].split() == ["short", "long", "change"]
    [steps] = [line for line in lines if line.startswith("train steps")]
    assert steps.split()[-3:] == ["30", "30", "+0%"]
    [trains] = [line for line in lines if line.startswith("trainer trains")]
    assert trains.split()[-1] == "points"
    assert len({len(line.rstrip()) for line in lines if "%" in line}) <= 3


# -- what is refused


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"arrangement": "both"}, "arrangement: expected 'disaggregated' or 'colocated'"),
        ({"sync": "maybe"}, "sync: expected 'pause' or 'running'"),
        ({"batch_size": 0}, "batch_size: expected a whole number of at least 1, got 0"),
        ({"steps": 2.5}, "steps: expected a whole number of at least 1, got 2.5"),
        ({"slots": 2.5}, "slots: expected a whole number of at least 1, got 2.5"),
        ({"seed": -1}, "seed: expected a whole number of at least 0, got -1"),
        ({"keep_partial": 1}, "keep_partial: expected True or False, got 1"),
        ({"drain_timeout": -1}, "drain_timeout: expected seconds of 0 or more"),
        ({"tasks": {}}, "tasks: expected at least one"),
        ({"train_seconds": -1}, "train_seconds: expected a number of 0 or more, got -1"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused(wrong, said):
    with pytest.raises(rc.InvalidValue, match=said):
        Scenario(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"failure": 1.5}, "failure: expected a number from 0 to 1, got 1.5"),
        ({"failure": 0.5, "abort": 0.5}, "failure, abort: expected less than 1 together"),
        ({"filtered": 1}, "filtered: expected less than 1"),
        ({"median_tokens": 0}, "median_tokens: expected a number of more than 0"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(wrong, said):
    with pytest.raises(rc.InvalidValue, match=said):
        TaskModel(**wrong)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"batch": 4}, "batch: unknown; did you mean 'batch_size'?"),
        ({"tasks": {"math": {"sigmas": 1}}}, "tasks.math.sigmas: unknown"),
        ({"tasks": {"math": {"sigma": "much"}}}, "tasks.math.sigma: expected a number"),
        ({"staleness": {"max_staleness": -1}}, "staleness.max_staleness: expected a whole number"),
        ({"steps": "many"}, "steps: expected a whole number, got 'many'"),
    ],
)
def test_a_configuration_that_is_wrong_says_where(config, said):
    with pytest.raises(rc.errors.ConfigError, match=f"^{said}"):
        Scenario.from_config(config)


def test_a_scenario_from_data_is_the_one_from_code():
    made = Scenario.from_config(
        {"slots": 32, "staleness": {"max_staleness": 2}, "tasks": {"math": {"sigma": 0.5}}}
    )
    assert made == Scenario(
        slots=32, staleness=rc.Staleness(2), tasks={"math": TaskModel(sigma=0.5)}
    )


def test_what_is_no_scenario_is_refused() -> None:
    with pytest.raises(rc.InvalidValue, match=r"expected a Scenario, .* got {'steps': 3}"):
        simulate({"steps": 3})  # type: ignore[arg-type]
