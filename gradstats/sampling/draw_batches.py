"""The batches of a sampling plan, drawn one after another under a progress bar."""

from __future__ import annotations

from gradstats.rollouts.table import Rollouts
from gradstats.sampling.kept_answers import answers_path, draw_keeping_answers
from gradstats.sampling.plan import SamplingPlan
from gradstats.system.progress import progress_bar
from gradstats.system.shards import Shards


def draw_batches(plan: SamplingPlan, shards: Shards[Rollouts] | None, *, progress: bool) -> list[Rollouts]:
    """Draw the batches of a plan that are not finished, and return all of them in order.

    Args:
        plan: what to draw.
        shards: where each batch is kept as it finishes and finished ones are read from; None keeps them in memory.
        progress: show a progress bar.
    """
    finished = [] if shards is None else [shards.read_one(batch) for batch in shards.finished(plan.n_batches)]
    n_finished = sum(map(len, finished))
    with progress_bar("sampling", plan.n_completions, done=n_finished, shown=progress) as report:
        for drawn in finished:
            report.completions(drawn.rewards, drawn.lengths, before=True)

        def draw(batch: int) -> Rollouts:
            if shards is None:
                drawn = plan.draw(batch, report.tokens)
            else:
                path = answers_path(shards.folder, batch)
                drawn = draw_keeping_answers(plan.sampler, path, lambda: plan.draw(batch, report.tokens))
            report.completions(drawn.rewards, drawn.lengths)
            return drawn

        if shards is None:
            return [draw(batch) for batch in range(plan.n_batches)]
        shards.make_missing(plan.n_batches, draw)
    return shards.read_all(plan.n_batches)
