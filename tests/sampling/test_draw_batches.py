"""The batches of a plan: drawn once, kept as they finish, and never drawn again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.sampling import sample as module
from gradstats.sampling.plan import SamplingPlan
from gradstats.sampling.sample import draw_batches
from gradstats.system.shards import Shards


class Plan(SamplingPlan):
    """Three batches of two completions, whose reward is the number of the batch."""

    def __init__(self):
        object.__setattr__(self, "rows", [[(batch, 0), (batch, 1)] for batch in range(3)])
        object.__setattr__(self, "drawn", [])
        object.__setattr__(self, "sampler", SimpleNamespace(own_seeds=True, describe=dict, draw=list))

    def draw(self, batch, on_tokens=lambda count: None):
        self.drawn.append(batch)
        on_tokens(4)
        return Rollouts.from_sequences([[1]] * 2, [[2, 3]] * 2, [float(batch)] * 2, [f"p{batch}"] * 2)


@pytest.fixture
def shards(tmp_path):
    with Shards.resume(tmp_path / "shards", {}, ".parquet", read_rollouts, Rollouts.to_parquet) as shards:
        yield shards


def rewards(batches):
    return [rollouts.rewards.tolist() for rollouts in batches]


def test_without_shards_every_batch_is_drawn_in_order():
    plan = Plan()
    assert rewards(draw_batches(plan, None, progress=False)) == [[0, 0], [1, 1], [2, 2]]
    assert plan.drawn == [0, 1, 2]


def test_finished_batches_are_read_and_the_others_drawn(shards):
    earlier = Rollouts.from_sequences([[1]] * 2, [[2, 3]] * 2, [7.0] * 2, ["p1"] * 2)
    shards.write(earlier, shards.path(1))
    plan = Plan()
    assert rewards(draw_batches(plan, shards, progress=False)) == [[0, 0], [7, 7], [2, 2]]
    assert plan.drawn == [0, 2]
    assert rewards(draw_batches(plan, shards, progress=False)) == [[0, 0], [7, 7], [2, 2]]
    assert plan.drawn == [0, 2]


def test_what_was_drawn_before_an_error_is_kept(shards, monkeypatch):
    plan, draw = Plan(), Plan.draw

    def fails(plan, batch, *args):
        if batch == 2:
            raise ConnectionError("gone")
        return draw(plan, batch, *args)

    monkeypatch.setattr(Plan, "draw", fails)
    with pytest.raises(ConnectionError, match="gone"):
        draw_batches(plan, shards, progress=False)
    assert shards.finished(3) == [0, 1]


def test_the_bar_starts_at_the_completions_that_were_finished_before(shards, monkeypatch):
    counted = []

    class Bar:
        def __init__(self, label, total, *, done, shown):
            counted.append((label, total, done, shown))

        def __enter__(self):
            return SimpleNamespace(
                tokens=lambda count: counted.append(count),
                completions=lambda rewards, lengths, before=False: counted.append((rewards.tolist(), before)),
            )

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(module, "progress_bar", Bar)
    shards.write(Plan().draw(0), shards.path(0))
    draw_batches(Plan(), shards, progress=False)
    assert counted == [("sampling", 6, 2, False), ([0, 0], True), 4, ([1, 1], False), 4, ([2, 2], False)]
