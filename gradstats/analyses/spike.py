"""Why did the norm jump?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import scipy
from jaxtyping import Float, Int

from gradstats import estimators as families
from gradstats.analyses.declaration import Analysis, AnalysisFigure, FurtherTable, level_of, missing_sketches
from gradstats.analyses.drift import without_steps
from gradstats.analyses.numbers import format_estimate, format_number
from gradstats.analyses.results import RemarkedResult, Row, column, estimate
from gradstats.analyses.variance_notes import about_target
from gradstats.config.options import CONFIDENCE_LEVEL, counted
from gradstats.estimators import Batch
from gradstats.estimators.estimator import Weighting
from gradstats.plots.marks import require_columns
from gradstats.plots.style import ink, muted, paper
from gradstats.rollouts.log import Log
from gradstats.stats.batch_norm import variance_of_norm
from gradstats.stats.jackknife import Estimate, mean_statistic
from gradstats.stats.protocols import MeasuredGradients
from gradstats.stats.variance.inputs import pooled, prepared_inputs, refuse_batch_level
from gradstats.stats.variance.moments import of_rows, shuffled_deals, shuffled_prompts, split_into_groups
from gradstats.stats.variance.pools import PooledCompletions
from gradstats.stats.variance.quantities import NOT_NEGATIVE
from gradstats.stats.variance.sketch_error import rotated_once
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gradstats.measurement.measurement import Measurement

# Other steps whose standard deviation is taken.
_FEWEST_OTHERS = 3
#: Column of a log → what stands for the squared norm of a completion's score, the better first.
_PROXIES = {"proxy_logit": " × Σ(1 − 2π + Σπ²): noise of the output layer", "length": " × {unit}"}


def _named(frame: pd.DataFrame) -> str:
    """Name the batch that a table is of."""
    about = frame.attrs
    if about.get("proxy"):
        return f"step {about.get('number', '')}"
    return f"batch {about.get('number', '')}{_of_estimator(about.get('estimator', ''))}"


def _of_estimator(label: str) -> str:
    return f" ({label})" if label else ""


@dataclass(frozen=True)
class CompletionShare(Row):
    """What one completion makes of the squared norm of its batch."""

    prompt: str = column("name of the prompt")
    completion: int = column("number of the completion: its sample_id, or its row in the log among those with a reward")
    length: float = column("tokens of the completion, or letters of its text", "length", short=True)
    reward: float = column("its reward", "reward", short=True)
    group_reward: float = column("mean reward of its group", "mean of its group", short=True)
    share: float = column(
        "share of the squared norm that is gone without it, with the weights of the others as they are",
        "share",
        short=True,
    )


@dataclass(frozen=True)
class PromptShare(Row):
    """What one prompt makes of the squared norm of its batch."""

    prompt: str = column("name of the prompt")
    n: int = column("completions of its group")
    length: float = column("their mean length", "mean length")
    reward: float = column("their mean reward", "mean reward")
    share: float = column("share of the squared norm that is gone without the prompt", "share")


@dataclass(frozen=True)
class BatchNorm(Row):
    """The squared norm of the gradient of one batch, and what is expected of batches of its size."""

    batch: int = column("number of the batch, or training step")
    prompts: int = column("groups of the batch", "prompts")
    squared_norm: float = column("‖ĝ‖² of the batch, or its proxy", "‖ĝ‖²")
    signal: Estimate | None = estimate("‖E ĝ‖²", "signal", limits=NOT_NEGATIVE)
    noise: Estimate = estimate("tr Cov of a batch: that of a group over its prompts", "noise", limits=NOT_NEGATIVE)
    expected: float = column("signal and noise together: the expected squared norm", "expected")
    spread: float = column("standard deviation of the squared norm over batches", "spread")
    deviations: float = column(
        "squared norm less what all other prompts let expect of a batch, in their standard deviations over batches",
        "standard deviations by the others",
    )
    clipped_to: float = column("min(1, c/‖ĝ‖) with the norm c that gradients are clipped to", "left by clipping")


@dataclass(frozen=True, repr=False)
class Spike(RemarkedResult):
    """The batch with the largest gradient, or the one asked for; see :func:`spike`.

    Attributes:
        rows: the completions that make most of its squared norm, the largest share first.
        by_prompt: the prompts that do.
        batches: all batches, in order.
        number: of the batch that is explained.
        proxy: what stands for gradients; "" where they were measured.
        remarks: what a reader has to know.
        estimator: label of the one whose gradient it is; "" for a log.
    """

    question: ClassVar[str] = "spike"
    row: ClassVar = CompletionShare
    stated: ClassVar = ("number", "proxy", "estimator")

    rows: tuple[CompletionShare, ...]
    by_prompt: tuple[PromptShare, ...]
    batches: tuple[BatchNorm, ...]
    number: int
    proxy: str = ""
    remarks: tuple[str, ...] = ()
    estimator: str = ""

    @property
    def explained(self) -> BatchNorm:
        """The batch that is explained."""
        return next(one for one in self.batches if one.batch == self.number)

    def prompts_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return one row per listed prompt."""
        return self._frame(self.by_prompt, PromptShare, confidence_level)

    def batches_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return one row per batch."""
        return self._frame(self.batches, BatchNorm, confidence_level)

    def _frame(self, rows: Sequence[Row], kind: type[Row], confidence_level: float) -> pd.DataFrame:
        frame = pd.DataFrame([one.record(confidence_level) for one in rows], columns=kind.names())
        frame.attrs |= {"confidence_level": confidence_level} | {name: getattr(self, name) for name in self.stated}
        return frame

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State how unusual the batch is, and which completion makes most of its squared norm."""
        one, several = self.explained, len(self.batches) > 1
        largest = several and one.squared_norm == max(other.squared_norm for other in self.batches)
        noise = format_estimate(*one.noise.with_interval(confidence_level), limits=NOT_NEGATIVE)
        far = f"{abs(one.deviations):.1f} standard deviations {'above' if one.deviations >= 0 else 'below'}"
        if self.proxy:
            which = f" is the largest of {len(self.batches):,}" if largest else ""
            said = f"The squared norm of step {one.batch:,} by {self.proxy}{which}: "
            said += f"{format_number(one.squared_norm / one.expected, 2)} times the mean"
            said += f", {far} the other steps" if np.isfinite(one.deviations) else ""
        else:
            assert one.signal is not None
            signal = format_estimate(*one.signal.with_interval(confidence_level), limits=NOT_NEGATIVE)
            size = counted(one.prompts, "prompt")
            which = f"Batch {one.batch} ({size})" if several else f"The batch of {size}"
            said = f"The largest of {len(self.batches)} batches of {size}" if largest else which
            said += f" has ‖ĝ‖² = {format_number(one.squared_norm)}{_of_estimator(self.estimator)}; signal {signal} "
            said += f"and noise {noise} make {format_number(one.expected)}"
            said += f" ± {format_number(one.spread, 2)}" if np.isfinite(one.spread) else ""
            if np.isfinite(one.deviations):
                said += f", and {'the other prompts' if several else 'other steps'} put it {far}"
        if np.isfinite(one.clipped_to):
            said += f"; clipping leaves {one.clipped_to:.0%} of its length"
        first = self.rows[0]
        if np.isfinite(first.share):
            said += f". Completion {first.completion:,} of prompt {first.prompt.removeprefix('prompt ')} "
            if self.proxy and np.isfinite(first.length):
                unit = "letters" if "letters" in self.proxy else "tokens"
                said += f"({first.length:,.0f} {unit}, reward {first.reward:g}) "
            said += f"makes {first.share:.0%} of it" if first.share >= 0.01 else "makes less than 1% of it"
        return f"{said}."


def spike(
    measured_or_log: Batch | MeasuredGradients | Log,
    scores: npt.ArrayLike | None = None,
    *,
    estimator: str | Weighting = "rloo",
    prompts_per_batch: int | None = None,
    batch: int | None = None,
    max_grad_norm: float | None = None,
    others: Sequence[float] | None = None,
    top: int = 5,
    rng: int | np.random.Generator | None = 0,
    scores_are_sketches: bool | None = None,
) -> Spike:
    r"""Explain the squared norm of a batch's gradient: what is expected of it, and which completions make it.

    The gradient :math:`ĝ_B = \frac1B \sum_p g_p` of B prompts, :math:`g_p = \sum_{i∈p} w_i S_i`, has

    .. math:: E‖ĝ_B‖² = ‖E ĝ‖² + \frac{\mathrm{tr\,Cov}(g)}{B},

    signal and noise, with the variance of :func:`gradstats.stats.batch_norm.variance_of_norm`. ``deviations`` is a
    z-score by these two as the prompts of all other batches give them, so that an outlier is not judged by itself;
    squared norms have a longer tail than a normal distribution. The share of completion i is
    :math:`1 - ‖ĝ_B - x_i‖²/‖ĝ_B‖² = (2⟨ĝ_B, x_i⟩ - ‖x_i‖²)/‖ĝ_B‖²`, :math:`x_i = w_i S_i/B`, with the weights of
    the others as they are; negative for one that points against the rest. Shares do not sum to 1.

    Prompts are dealt into batches once, at random. Where one batch holds all of them its squared norm *is* the
    estimated signal plus noise/B, and only ``others`` say whether that is unusual: ``deviations`` is then by their mean
    and standard deviation.

    **A log** has no gradients. There a batch is a step, and :math:`‖x_i‖²` is by proxy the squared advantage (as
    logged, else that of ``rloo``) times :math:`\sum_t (1 - 2π_t + \sum_v π_v²)`, the noise of the output layer, or
    the length where that is unknown; products of different completions count as 0, and all steps as alike.

    Args:
        measured_or_log: a measurement, a :class:`gradstats.estimators.Batch`, or a log of several steps.
        scores: as in :func:`gradstats.compare`.
        estimator: whose gradient it is, one that stays within its group.
        prompts_per_batch: prompts B of a batch; a quarter of the prompts by default, at most 64.
        batch: number of the batch, or the step of a log; the one with the largest gradient by default.
        max_grad_norm: norm that gradients are clipped to, for the share of the length that is left.
        others: squared norms of other steps, three or more, where one batch holds all prompts.
        top: how many completions and prompts are listed.
        rng: as in :func:`gradstats.compare`.
        scores_are_sketches: as in :func:`gradstats.compare`.

    Returns:
        A :class:`Spike`.

    Raises:
        ValueError: for a batch that there is not, more prompts than there are, an estimator of batch level, a log of
            one step, and as in :func:`gradstats.compare`.

    Example:
        >>> import gradstats as gs
        >>> batch = gs.estimators.Batch([1, 0] * 8, [5] * 16, np.repeat(np.arange(8), 2))
        >>> scores = np.random.default_rng(0).normal(size=(16, 4))
        >>> scores[6] *= 20
        >>> found = gs.analyses.spike(batch, scores, prompts_per_batch=2)
        >>> found.rows[0].prompt, found.rows[0].completion
        ('3', 6)
    """
    if top < 1:
        raise ValueError(f"top={top} must be at least 1: how many completions are listed")
    if isinstance(measured_or_log, Log):
        return _of_log(measured_or_log, batch, top)
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ValueError(f"max_grad_norm={max_grad_norm} must be above 0: give the norm that the trainer clips to")
    generator, one = np.random.default_rng(rng), families.get(estimator)
    refuse_batch_level([one])
    inputs, (one,), judged = prepared_inputs(measured_or_log, [one], scores, scores_are_sketches, "auto")
    order = shuffled_prompts(inputs.batch.group_index, generator)
    groups = split_into_groups(order, inputs.order, None)
    with rotated_once():
        pool = pooled(inputs, groups, [one], generator.spawn(1)[0], judged, prompts_per_batch, shared=True)
        size = pool.batch_prompts
        if not 1 <= size <= groups.n_prompts:
            raise ValueError(
                f"prompts_per_batch={size} must be between 1 and the {groups.n_prompts} prompts that were measured"
            )
        weighted = pool.local(one)
        if weighted.moments is None:
            raise ValueError(f"{one.label} has no gradient here: every weight is 0")
        signal, trace_cov = weighted.moments.signal, weighted.moments.trace_cov
        sums = partial(_products, pool, one, weighted.weights)
        members = np.split(np.arange(len(groups.group)), np.cumsum(groups.sizes)[:-1])
        products = sums(members)
    scattered = partial(_spread, size=size, sketch_dim=inputs.scores.shape[-1] if inputs.sketched else None)
    (dealt,) = next(shuffled_deals(np.random.default_rng(pool.deal_seed), groups.n_prompts, size, 1))
    batches = dealt.reshape(-1, size)
    norms = np.array([products[np.ix_(prompts, prompts)].sum() for prompts in batches]) / size**2
    noise, expected = trace_cov.scaled(1.0 / size).estimate(), signal.value + trace_cov.value / size
    rows = tuple(
        BatchNorm(
            number,
            size,
            float(norm),
            signal.estimate(),
            noise,
            expected,
            scattered(products),
            _beyond(float(norm), np.delete(np.delete(products, prompts, 0), prompts, 1), size, scattered)
            if size < groups.n_prompts
            else _beside(float(norm), others or ()),
            np.nan if max_grad_norm is None else min(1.0, max_grad_norm / np.sqrt(norm)) if norm > 0 else 1.0,
        )
        for number, (norm, prompts) in enumerate(zip(norms, batches, strict=True))
    )
    number = _chosen(rows, batch, "batch")
    inside = np.concatenate([members[prompt] for prompt in np.sort(batches[number])])
    frame = getattr(getattr(measured_or_log, "rollouts", None), "frame", None)
    completions = _Completions(
        names=list(map(str, inputs.batch.groups[groups.rows[inside]])),
        numbers=(groups.rows if frame is None else frame["sample_id"].to_numpy()[groups.rows])[inside],
        groups=np.unique(groups.group[inside], return_inverse=True)[1],
        lengths=pool.batch.lengths[inside].astype(np.float64),
        rewards=pool.batch.rewards[inside],
    )
    shares = completions.shares(sums([np.array([row]) for row in inside]), top)
    notes: list[str | None] = [about_target(judged)]
    if size == groups.n_prompts and np.isnan(rows[0].deviations):
        notes.append(
            "the batch holds all prompts, from which signal and noise are estimated: whether its norm is unusual, only "
            "other steps say; give the squared norms of three or more with others, or fewer prompts_per_batch"
        )
    remarks = tuple(one for one in notes if one is not None)
    return Spike(*shares, rows, number, remarks=remarks, estimator=one.label)


def _products(
    pool: PooledCompletions, one: Weighting, weights: np.ndarray, rows: list[np.ndarray]
) -> Float[np.ndarray, "k k"]:
    """Return the inner products of weighted sums of scores over some completions each, with exact squares."""
    scores = pool.scores_of(one)
    vectors, surplus = scores.sums(rows, [of_rows(weights, some) for some in rows])
    signed = vectors if scores.signs is None else vectors * scores.signs[: vectors.shape[1]]
    return signed @ vectors.T + np.diag(surplus)


def _spread(products: Float[np.ndarray, "m *m"], size: int, sketch_dim: int | None = None) -> float:
    """Return the standard deviation of squared norms of batches; NaN where the estimated variance is negative."""
    squares = products if products.ndim == 1 else np.diag(products)
    variance = variance_of_norm(squares, None if products.ndim == 1 else products, size, sketch_dim)
    return float(np.sqrt(variance)) if variance >= 0.0 else np.nan


def _beyond(
    squared_norm: float,
    others: Float[np.ndarray, "m *m"],
    size: int,
    spread: Callable[[Float[np.ndarray, "m *m"]], float],
) -> float:
    """Return how many standard deviations a squared norm lies above what other prompts let expect of a batch."""
    m, squares = len(others), others if others.ndim == 1 else np.diag(others)
    pairs = 0.0 if others.ndim == 1 or m < 2 else float(others.sum() - squares.sum()) / (m * (m - 1.0))
    expected, scatter = float(squares.sum()) / max(m, 1) / size + (1.0 - 1.0 / size) * pairs, spread(others)
    return (squared_norm - expected) / scatter if scatter > 0 else np.nan


def _beside(squared_norm: float, others: Sequence[float]) -> float:
    """Return how many standard deviations of other steps a squared norm lies above their mean; NaN beside few."""
    if len(others) < _FEWEST_OTHERS:
        return np.nan
    spread = float(np.std(others, ddof=1))
    return (squared_norm - float(np.mean(others))) / spread if spread > 0 else np.nan


def _chosen(rows: Sequence[BatchNorm], asked: int | None, kind: str) -> int:
    """Return the number of the batch asked for, or of the one with the largest squared norm."""
    if asked is None:
        return max(rows, key=lambda row: row.squared_norm).batch
    there = [row.batch for row in rows]
    if asked not in there:
        raise ValueError(f"batch={asked} is not a {kind} here: choose one from {min(there)} to {max(there)}")
    return asked


@dataclass(frozen=True)
class _Completions:
    """The completions of one batch."""

    names: Sequence[str]  # of their prompts
    numbers: Int[np.ndarray, " n"]
    groups: Int[np.ndarray, " n"]  # from 0
    lengths: Float[np.ndarray, " n"]
    rewards: Float[np.ndarray, " n"]

    def shares(
        self, products: Float[np.ndarray, "n *n"], top: int
    ) -> tuple[tuple[CompletionShare, ...], tuple[PromptShare, ...]]:
        """Return what completions and prompts make of the squared norm, largest first.

        Args:
            products: inner products of the completions' gradients, or their squares where others are 0.
            top: how many are listed.
        """
        whole = float(products.sum()) or np.nan
        first = np.flatnonzero(np.diff(self.groups, prepend=-1))
        of_completion, of_prompt = (
            _gone(products, np.arange(len(self.groups))) / whole,
            _gone(products, self.groups) / whole,
        )
        listed = np.argsort(-of_completion, kind="stable")[:top]
        sizes = np.bincount(self.groups)
        lengths, rewards = (np.bincount(self.groups, one) / sizes for one in (self.lengths, self.rewards))
        return (
            tuple(
                CompletionShare(
                    self.names[int(row)],
                    int(self.numbers[row]),
                    float(self.lengths[row]),
                    float(self.rewards[row]),
                    float(rewards[self.groups[row]]),
                    float(of_completion[row]),
                )
                for row in listed
            ),
            tuple(
                PromptShare(
                    self.names[int(first[group])],
                    int(sizes[group]),
                    float(lengths[group]),
                    float(rewards[group]),
                    float(of_prompt[group]),
                )
                for group in np.argsort(-of_prompt, kind="stable")[:top]
            ),
        )


def _gone(products: Float[np.ndarray, "n *n"], part: Int[np.ndarray, " n"]) -> Float[np.ndarray, " parts"]:
    """Return by how much the square of the sum of all is smaller without each part: 2⟨Σ, x⟩ − ‖x‖²."""
    if products.ndim == 1:
        return np.bincount(part, products)
    rows = (np.ones(len(part)), (part, np.arange(len(part))))
    gather = scipy.sparse.csr_array(rows, shape=(int(part.max()) + 1, len(part)))
    within = np.asarray((gather @ products * gather.toarray()).sum(axis=1))
    return 2.0 * (gather @ products.sum(axis=1)) - within


def _squares(log: Log) -> tuple[Float[np.ndarray, " n"], str]:
    """Return what stands for the squared norm of each completion's share in its group, and its name."""
    groups, rewards = log.labels("group"), log.column("reward")
    sizes, known = np.bincount(groups), {one for one in log.frame if np.isfinite(log.column(one)).all()}
    advantages = (rewards - (np.bincount(groups, rewards) / sizes)[groups]) * (sizes / np.maximum(sizes - 1, 1))[groups]
    if "advantage" in known:
        advantages = log.column("advantage")
    name = next((one for one in _PROXIES if one in known), "")
    energy = log.column(name) if name else 1.0
    proxy = f"proxy (advantage²{_PROXIES.get(name, '').format(unit=log.unit)})"
    return (advantages / sizes[groups]) ** 2 * energy, proxy


def _without_norms(asked_of: Measurement | Log) -> str:
    """Return why norms cannot be asked about; "" where they can."""
    if not isinstance(asked_of, Log):
        return missing_sketches(asked_of)
    silent = "" if _squares(asked_of)[0].any() else "no group of the log has a gradient: rewards are equal in each"
    return without_steps(asked_of) or silent


def _of_log(log: Log, step: int | None, top: int) -> Spike:
    """Explain the step of a log with the largest squared norm by proxy, or one that is asked for."""
    if why := _without_norms(log):
        raise ValueError(why)
    groups, steps, (squares, proxy) = log.labels("group"), log.labels("step"), _squares(log)
    lengths = log.column("length") if "length" in log.frame else np.full(len(steps), np.nan)
    of_group = np.bincount(groups, squares)
    step_of_group = np.zeros(len(of_group), dtype=np.int64)
    step_of_group[groups] = steps
    mean, rows = mean_statistic(of_group), []
    for one in np.unique(steps):
        here = np.flatnonzero(step_of_group == one)
        size, noise = len(here), mean.scaled(1.0 / len(here)).estimate()
        norm, scattered = float(of_group[here].sum()) / size**2, partial(_spread, size=size)
        far = _beyond(norm, np.delete(of_group, here), size, scattered)
        rows.append(BatchNorm(int(one), size, norm, None, noise, noise.value, scattered(of_group), far, np.nan))
    number = _chosen(rows, step, "step")
    inside = np.flatnonzero(steps == number)
    inside = inside[np.argsort(groups[inside], kind="stable")]
    completions = _Completions(
        names=[log.prompt_name(prompt) for prompt in log.labels("prompt")[inside].tolist()],
        numbers=inside + 1,
        groups=np.unique(groups[inside], return_inverse=True)[1],
        lengths=lengths[inside],
        rewards=log.column("reward")[inside],
    )
    shares = completions.shares(squares[inside], top)
    said = f"norms of steps by {proxy} know nothing of signal, of layers, and of what cancels"
    return Spike(*shares, tuple(rows), number, proxy, (*log.notes, said))


def plot_spike(frame: pd.DataFrame) -> Axes:
    """Draw the squared norms of batches, with what is expected of them and two standard deviations about it.

    Args:
        frame: the batches of a :class:`Spike`, as ``further["spike_batches"]`` of its answer.

    Returns:
        The axes; the batch that is explained is filled.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    require_columns(frame, ["batch", "squared_norm", "expected", "spread"], "draw the batches of spike()")
    _, ax = plt.subplots()
    at, norm, expected, spread = (
        frame[name].to_numpy(dtype=float) for name in ("batch", "squared_norm", "expected", "spread")
    )
    ax.plot(at, expected, color=muted(), linestyle="--", marker="_" if len(at) == 1 else "", zorder=1)
    ax.fill_between(at, np.maximum(expected - 2 * spread, 0.0), expected + 2 * spread, color=muted(), alpha=0.25, lw=0)
    filled = at == frame.attrs.get("number")
    for some, fill in ((filled, ink()), (~filled, paper())):
        ax.plot(at[some], norm[some], marker="o", linestyle="none", color=ink(), markerfacecolor=fill, zorder=3)
    ax.set_ylim(bottom=0.0)
    ax.xaxis.set_major_locator(plt.MaxNLocator(integer=True))
    ax.set_xlabel("training step" if frame.attrs.get("proxy") else "batch")
    ax.set_ylabel("squared norm, by proxy" if frame.attrs.get("proxy") else "squared norm of the gradient")
    return ax


ANALYSIS = Analysis(
    name="spike",
    ask=spike,
    unavailable_because=_without_norms,
    options=("estimator", "prompts_per_batch", "batch", "max_grad_norm", "others", "top", "rng"),
    columns=CompletionShare.columns(),
    row_name=lambda row: f"{row['prompt']}, {row['completion']:g}",
    row_heading="prompt, completion",
    caption=lambda frame: f"What makes the squared norm of {_named(frame)}: the share that is gone without it.",
    further=(
        FurtherTable(
            "spike_prompts",
            Spike.prompts_frame,
            PromptShare.columns(),
            row_heading="prompt",
            caption=lambda frame: f"What prompts make of the squared norm of {_named(frame)}.",
        ),
        FurtherTable(
            "spike_batches",
            Spike.batches_frame,
            BatchNorm.columns(),
            row_name=lambda row: f"{row['batch']:g}",
            row_heading=lambda frame: "step" if frame.attrs.get("proxy") else "batch",
            caption=lambda frame: f"Squared norms, with {level_of(frame)}intervals over prompts.",
        ),
    ),
    figures=(
        AnalysisFigure(
            "spike",
            "Squared norms of the gradients of batches, what is expected (dashed) and two standard deviations about "
            "it; filled: the batch that is explained.",
            plot_spike,
            table="spike_batches",
        ),
    ),
)
