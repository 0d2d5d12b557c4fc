"""The variance monitor: what each estimator's gradient would be worth, measured on a trainer's own completions."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import TrainerCallback

from gradstats import estimators as families
from gradstats.config.experiment import Experiment
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.config.sections import (
    DEFAULT_ESTIMATORS,
    MeasurementSection,
    PolicySection,
    PromptsSection,
    SamplingSection,
    VarianceSection,
)
from gradstats.estimators.batch import Batch
from gradstats.estimators.estimator import composition_of
from gradstats.gradients.session import MeasuringSession
from gradstats.integrations.moving_batch import MovingBatch, step_in_words
from gradstats.integrations.training_record import PREFIX, RecordedStep, TrainingRecord, WarnOnce, logged_values
from gradstats.integrations.trl.contract import (
    Generation,
    check_trainer,
    follow_loss,
    gathered,
    intercept,
    own_estimator,
    prompts_of_step,
    sampler_settings,
    torch_as_it_was,
    trainer_of,
)
from gradstats.measurement.measurement import Measurement
from gradstats.policy.checkpoint import known_as
from gradstats.policy.model import dtype_name
from gradstats.policy.policy import Policy, as_policy
from gradstats.rollouts.table import Rollouts

if TYPE_CHECKING:
    from gradstats.integrations.trl.contract import Trainer


def step_name(step: int) -> str:
    """Return the revision of a policy after so many optimizer steps, as in ``"step-000050"``."""
    return f"step-{step:06d}"


@contextmanager
def live_policy(trainer: Trainer) -> Iterator[Policy]:
    """Lend the model in evaluation mode, in the dtype of its parameters, scored at the trainer's temperature.

    Evaluation mode also switches dropout and gradient checkpointing off. The forward method that accelerate wrapped in
    autocast is replaced by the one under it: under autocast gradients of float32 parameters deviate by several per
    cent. On leaving, modes, forward methods and what :func:`torch_as_it_was` restores are what they were; gradients
    that the trainer has accumulated are never touched.
    """
    # Without keep_fp32_wrapper, accelerate takes the wrapper off the live model.
    model: nn.Module = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=True)
    training = [module for module in model.modules() if module.training]
    wrapped = vars(model).get("forward")
    original = vars(model).get("_original_forward")
    with torch_as_it_was():
        for module in training:
            module.training = False
        if original is not None:
            model.forward = original
        try:
            policy = as_policy(model)
            yield replace(
                policy,
                tokenizer=trainer.processing_class,
                temperature=float(trainer.temperature),
                revision=step_name(trainer.state.global_step),
            )
        finally:
            if original is not None:
                model.forward = wrapped  # pyright: ignore[reportAttributeAccessIssue]
            for module in training:
                module.training = True


def opened(
    session: MeasuringSession | None, policy: Policy, rollouts: Rollouts, section: MeasurementSection
) -> MeasuringSession:
    """Return a session for the policy of this step: a new one where the model is another than before."""
    if session is None or session.policy.model is not policy.model:
        # A gradient of 0 checks nothing.
        counted = np.flatnonzero(rollouts.lengths > 0)
        some = rollouts.select(counted) if counted.size else rollouts
        session = MeasuringSession.open(policy, some, section, in_training=True)
    session.policy = policy
    return session


_ATTACHED = "gradstats_monitor"
#: The usual estimators that stay within their group; dealing a batch's groups again and again would take half as long.
_WITHIN_GROUPS = tuple(label for label in DEFAULT_ESTIMATORS if not families.get(label).across_groups)
#: Norms are not split by layer: a fit of α for each would take a tenth of the time.
_BLOCKS = {".": "all"}
#: Estimators whose ratios are logged by default.
_SHOWN = 2


@dataclass(frozen=True)
class _Part:
    """What one process measured; ``error`` where that failed, and no measurement where it had nothing to measure."""

    measured: Measurement | None
    n_left_out: int = 0
    remarks: tuple[str, ...] = ()
    error: str | None = None


class VarianceMonitor(TrainerCallback):
    """Measure the variance of several estimators on a trainer's own completions, and log it.

    It is one of the trainer's ``callbacks``, or attached to it. Every so many optimizer steps, when completions have
    been drawn and scored and before they are learnt from, their gradients are measured with the live model, as
    :func:`gradstats.measure` does, and compared, as :func:`gradstats.compare` does. The numbers of
    :func:`gradstats.integrations.training_record.logged_values` go to the trainer's own reporters, with those of
    :class:`gradstats.integrations.moving_batch.MovingBatch` on the batch of an optimizer step: of the trainer's
    :func:`gradstats.integrations.trl.contract.own_estimator`, which is compared whether or not the list has it; of the
    reference where it weights single tokens. One sentence of them is printed. Of every batch drawn, measured or not,
    the shares of silent groups and of their tokens are logged
    (:func:`gradstats.integrations.moving_batch.silent_shares`), and of every loss
    :func:`gradstats.integrations.moving_batch.head_noise_proxy`, from the log-probabilities of the trainer's own
    forward pass. Everything measured goes to a folder that ``gradstats export`` draws, with what makes the norm of each
    step (:func:`gradstats.analyses.spike`). The training run ends with the same weights, bit for bit, as without a
    monitor. What cannot be measured is warned of, skipped and counted; it never stops the training.

    Completions without a reward are left out, and so are groups of which fewer than two are left. One of which no
    token counts, as of a truncated one with ``mask_truncated_completions``, stays with its reward and gradient 0.
    Rewards are the trainer's weighted sums, without a KL penalty.

    Args:
        estimators: labels of the estimators to compare, as for :func:`gradstats.compare`; by default the usual ones
            that stay within their group.
        every: measure the first batch that is drawn after so many optimizer steps.
        n_prompts: measure only so many groups of a batch, evenly spaced; all by default.
        out: the folder of the record; ``gradstats`` in the trainer's ``output_dir`` by default.
        params: regular expression of the parameters to differentiate; all trainable ones by default.
        sketch_dim: dimension of the random projections.
        reference: the estimator that ratios are taken to.
        prompts_per_batch: as for :func:`gradstats.compare`.
        confidence_level: level of the intervals.
        keep_measurements: also keep norms and sketches of every measured step.
        verbose: log all numbers; by default 12 at most, among them the ratios of the first two estimators, of which the
            reference is the last.

    Raises:
        ValueError: for a setting out of range.
        KeyError: for an unknown estimator.

    Attributes:
        n_measured: how many batches were measured.
        n_skipped: how many were due and could not be.
        n_left_out: how many completions were left out.
    """

    def __init__(
        self,
        estimators: Sequence[str] = _WITHIN_GROUPS,
        *,
        every: int = 50,
        n_prompts: int | None = None,
        out: str | os.PathLike[str] | None = None,
        params: str | None = None,
        sketch_dim: int = 16384,
        reference: str = "rloo",
        prompts_per_batch: int | None = None,
        confidence_level: float = CONFIDENCE_LEVEL,
        keep_measurements: bool = False,
        verbose: bool = False,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is {every}: give the number of steps between two measurements, at least 1")
        if n_prompts is not None and n_prompts < 2:
            raise ValueError(f"n_prompts is {n_prompts}: a variance needs at least 2 prompts")
        with torch_as_it_was():  # a file of the user may set them when it is imported
            for label in (*estimators, reference):
                families.get(label)
        labels = [*estimators] if reference in estimators else [*estimators, reference]
        self._variance = VarianceSection(
            estimators=labels,
            reference=reference,
            prompts_per_batch=prompts_per_batch,
            confidence_level=confidence_level,
        )
        self._measurement = MeasurementSection(params=params, sketch_dim=sketch_dim, blocks=_BLOCKS)
        self._every, self._n_prompts = every, n_prompts
        self._out = None if out is None else Path(out)
        self._keep_measurements = keep_measurements
        self._ratios_of = None if verbose else sorted(labels, key=lambda label: label == reference)[:_SHOWN]
        self._last: int | None = None
        self._session: MeasuringSession | None = None
        self._record: TrainingRecord | None = None
        self._moving = MovingBatch()
        self._complaints = WarnOnce()
        self._own: str | None = None  # the trainer's own estimator as it is compared
        self.n_measured = self.n_skipped = self.n_left_out = 0

    def attach(self, trainer: Trainer) -> VarianceMonitor:
        """Watch a trainer; call this before ``trainer.train()``.

        Args:
            trainer: a ``GRPOTrainer`` or ``RLOOTrainer`` of TRL.

        Returns:
            The monitor itself.

        Raises:
            TypeError, ValueError: as :func:`gradstats.integrations.trl.contract.check_trainer`; a ValueError also for
                a trainer that has a monitor already, and for a monitor that watches another trainer.
        """
        check_trainer(trainer)
        if _ATTACHED in vars(trainer):
            raise ValueError("this trainer has a variance monitor already: give that one all estimators")
        if self._record is not None:
            raise ValueError("this monitor watches another trainer already: make one for each")
        folder = Path(trainer.args.output_dir) / "gradstats" if self._out is None else self._out
        self._record = TrainingRecord(folder, self._experiment(trainer, folder), self._keep_measurements)
        intercept(trainer, self._observe)
        follow_loss(trainer, self._note_loss)
        vars(trainer)[_ATTACHED] = self
        return self

    def on_train_begin(self, args: object, state: object, control: object, **_: object) -> None:
        """Attach to the trainer that has the monitor among its ``callbacks``, unless that was done before."""
        trainer = trainer_of(state)
        if vars(trainer).get(_ATTACHED) is not self:
            self.attach(trainer)

    @property
    def folder(self) -> Path | None:
        """The folder of the record; None before the monitor is attached."""
        return None if self._record is None else self._record.folder

    def _experiment(self, trainer: Trainer, folder: Path) -> Experiment:
        args = trainer.args
        drawn = {name: value for name, value in sampler_settings(trainer).items() if value is not None}
        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=True)
        return Experiment(
            name=folder.resolve().name,
            description=f"Measured during a training run of {type(trainer).__name__}.",
            policy=PolicySection(
                name=known_as(model),
                dtype=dtype_name(next(model.parameters()).dtype),  # pyright: ignore[reportArgumentType]
                temperature=float(trainer.temperature),
            ),
            prompts=PromptsSection(source="trl"),
            sampling=SamplingSection(
                group_size=trainer.num_generations,
                max_new_tokens=args.max_completion_length,
                sampler="vllm" if args.use_vllm else "transformers",
                **drawn,  # pyright: ignore[reportArgumentType]
            ),
            measurement=self._measurement,
            variance=self._variance,
        )

    def _observe(self, generation: Generation) -> None:
        """Log what a batch says without a measurement, and measure one that is due; every process takes part."""
        trainer, step = generation.trainer, generation.trainer.state.global_step
        silent = generation.silent_shares()
        # TRL itself logs the share of groups, as frac_reward_zero_std.
        shown = silent if self._ratios_of is None or len(silent) == 1 else {"silent_tokens": silent["silent_tokens"]}
        values = {f"{PREFIX}/{key}": value for key, value in shown.items()}
        if self._last is None or step // self._every != self._last // self._every:
            self._last = step
            values |= self._measured(generation, silent)
        if trainer.accelerator.is_main_process:
            for key, value in values.items():
                trainer._metrics["train"][key].append(value)

    def _note_loss(self, trainer: Trainer, proxy: float) -> None:
        """Log the noise of the output layer that the log-probabilities of a loss tell; every process takes part."""
        mean = trainer.accelerator.gather(torch.tensor([proxy], device=trainer.accelerator.device)).nanmean()
        if trainer.accelerator.is_main_process and torch.isfinite(mean):
            trainer._metrics["train"][f"{PREFIX}/head_noise_proxy"].append(float(mean))

    def _measured(self, generation: Generation, silent: dict[str, float]) -> dict[str, float]:
        """Measure a batch and print what it says; returns what the main process logs of it."""
        trainer, step = generation.trainer, generation.trainer.state.global_step
        start = time.perf_counter()
        parts = gathered(trainer, self._measured_part(generation))
        if not trainer.accelerator.is_main_process:
            return {}
        values: dict[str, float] = {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they are in the record
                recorded = self._recorded(trainer, parts, step)
                of_batch = self._of_batch(trainer, recorded)
                further = of_batch | {"seconds": time.perf_counter() - start}
                values = logged_values(recorded, further, self._ratios_of)
                assert self._own is not None
                size = trainer.num_generations
                tqdm.write(step_in_words(step, self._own, size, of_batch | silent, self._moving.better))
        except (Exception, SystemExit) as error:  # code of the user may end the process
            self.n_skipped += 1
            self._complaints.say(f"the gradients of step {step} were not measured", error)
        if self._ratios_of is None:
            values |= {f"{PREFIX}/skipped": float(self.n_skipped), f"{PREFIX}/left_out": float(self.n_left_out)}
        return values

    def _measured_part(self, generation: Generation) -> _Part:
        """Measure what this process drew; an error is returned, since the other processes wait for the result."""
        groups = None
        n_groups = generation.n_groups
        if self._n_prompts is not None and self._n_prompts < n_groups:
            groups = np.arange(self._n_prompts) * n_groups // self._n_prompts
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                left_out = int((~generation.usable()).sum())
                if "pixel_values" in generation.output:
                    raise ValueError("completions of images cannot be measured: attach to a trainer of text alone")
                rollouts = generation.rollouts(groups)
                if rollouts is None:
                    return _Part(None, left_out)
                with live_policy(generation.trainer) as policy, torch.enable_grad():
                    rollouts = replace(rollouts, metadata=rollouts.metadata | {"policy": policy.describe()})
                    session = opened(self._session, policy, rollouts, self._measurement)
                    measured = session.measure(rollouts)
                    self._session = session
                measured = replace(measured, metadata=measured.metadata | {"policy": policy.describe()})
        except (Exception, SystemExit) as error:
            return _Part(None, error=f"{type(error).__name__}: {error}")
        said = [str(one.message) for one in caught if issubclass(one.category, (UserWarning, RuntimeWarning))]
        return _Part(measured, left_out, tuple(dict.fromkeys(said)))

    def _recorded(self, trainer: Trainer, parts: Sequence[_Part], step: int) -> RecordedStep:
        """Join what all processes measured, analyse it and write it."""
        self.n_left_out += sum(part.n_left_out for part in parts)
        if errors := [part.error for part in parts if part.error is not None]:
            raise ValueError(errors[0])
        there = [part.measured for part in parts if part.measured is not None]
        if not there:
            raise ValueError("no completion has a reward")
        measured = there[0] if len(there) == 1 else Measurement.concatenate(there)
        if not measured.lengths.any():
            raise ValueError("no completion has a token that counts")
        labels, place, sizes = np.unique(measured.rollouts.prompt_id, return_inverse=True, return_counts=True)
        whole = sizes[place] > 1
        if np.sum(sizes > 1) < 2:
            raise ValueError(f"{np.sum(sizes > 1)} of {len(labels)} groups hold two usable completions, and 2 must")
        if not whole.all():
            self.n_left_out += int((~whole).sum())
            measured = measured.select(np.flatnonzero(whole))
        assert self._record is not None
        if self._own is None:
            self._own = self._compare_own(trainer, measured)
            # Up to a factor that a batch shares: no norm to clip to holds for it.
            size = min(max(int(prompts_of_step(trainer)), 1), int(np.sum(sizes > 1)))
            asked = {"spike": {"estimator": self._own, "prompts_per_batch": size}}
            self._record.experiment = self._record.experiment.model_copy(update={"analyses": asked})
        remarks = dict.fromkeys(remark for part in parts for remark in part.remarks)
        recorded = self._record.add(step_name(step), measured, list(remarks))
        self.n_measured += 1
        return recorded

    def _of_batch(self, trainer: Trainer, recorded: RecordedStep) -> dict[str, float]:
        """Return what the trainer's own batch reaches, from the comparison alone: key → number."""
        if recorded.variance is None or recorded.compared is None:
            return {}
        assert self._own is not None
        own = next(row for row in recorded.compared.rows if row.label == self._own)
        return self._moving.add(recorded.variance, own, prompts_of_step(trainer))

    def _compare_own(self, trainer: Trainer, measured: Measurement) -> str:
        """Have the estimator that the trainer uses compared as well; return its label in the list, or the reference's
        where a measurement of whole completions does not do for it.
        """
        assert self._record is not None
        label, listed = own_estimator(trainer), self._variance.estimators
        own = families.get(label)
        same = [one for one in listed if composition_of(families.get(one)) == composition_of(own)]
        if same:
            return same[0]
        batch = Batch.from_measurement(measured)
        if own.level == "token" or not all(map(batch.has, own.needs)):
            return self._variance.reference
        self._variance = self._variance.model_copy(update={"estimators": [*listed, label]})
        self._record.experiment = self._record.experiment.model_copy(update={"variance": self._variance})
        return label
