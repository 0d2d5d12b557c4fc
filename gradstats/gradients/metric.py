r"""The metric in which gradients are measured: Euclidean, or that of Adam's diagonal preconditioner."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradstats.gradients.blocks import ParameterSelection
from gradstats.policy.sharding import is_sharded
from gradstats.rollouts.table import Rollouts

# Hexadecimal digits of the moments' digest that are kept.
_DIGITS = 12


@dataclass(frozen=True, eq=False, repr=False)
class AdamMetric:
    r"""Adam's geometry: norms and inner products of :math:`P \circ S`, :math:`P = 1/(\hat v^{p} + \varepsilon)`.

    Adam divides each coordinate of the gradient by the root of its second moment, so that the noise of its steps is
    that of :math:`P \circ g`. The moments are held fixed: what is measured is the noise of the next step by a batch
    gradient that does not itself change :math:`\hat v`.

    A coordinate whose second moment is 0 (a row of an embedding whose token has not occurred) has
    :math:`P = 1/\varepsilon`, and dominates every norm as soon as a measured gradient reaches it.

    Kingma & Ba, "Adam: A method for stochastic optimization" (2015).

    Args:
        second_moments: parameter name → second moments of its coordinates, in the parameter's shape.
        eps: :math:`\varepsilon`, in units of a gradient to the power of 2p.
        power: p, 1/2 in Adam.
        step: the number of steps t after which the moments were taken from an optimizer, which are then divided by
            :math:`1 - \beta_2^t`; None for moments that need no correction.
        beta2: :math:`\beta_2`, used with ``step`` only.
        source: where the moments come from, in words, for the record.
        prompts: digests of the prompts from which the moments were estimated, see :func:`prompt_digests`; measuring
            these is refused, since their gradients would be divided by their own size.

    Raises:
        TypeError: for second moments that are no mapping of tensors.
        ValueError: for settings out of range, and for second moments that are negative or not finite, with the name of
            the parameter.

    >>> metric = AdamMetric({"weight": torch.tensor([4.0, 0.25])}, eps=0.0)
    >>> metric.of_parameter("weight").tolist()
    [0.5, 2.0]
    """

    second_moments: Mapping[str, Tensor]
    eps: float = 1e-8
    power: float = 0.5
    step: int | None = None
    beta2: float = 0.999
    source: str = ""
    prompts: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name, value in (("eps", self.eps), ("power", self.power)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} of the metric is {value}: it must be a finite number of at least 0")
        if self.step is not None and (self.step != int(self.step) or self.step < 1):
            raise ValueError(f"step of the metric is {self.step}: it must be a number of steps of at least 1, or None")
        if not 0 < self.beta2 < 1:
            raise ValueError(f"beta2 of the metric is {self.beta2}: it must lie between 0 and 1")
        if not isinstance(self.second_moments, Mapping):
            raise TypeError(
                f"second_moments of the metric are a {type(self.second_moments).__name__}: give parameter name → "
                "tensor; a file is read by AdamMetric.read(path, model)"
            )
        if not self.second_moments:
            raise ValueError("second_moments are empty: give a tensor for each parameter, by name")
        moments = {str(name): _as_tensor(str(name), values) for name, values in self.second_moments.items()}
        for name, values in moments.items():
            if not values.is_floating_point():
                raise ValueError(
                    f"the second moments of {name} have the type {values.dtype}: give floating-point numbers"
                )
            if not bool(torch.isfinite(values).all()):
                raise ValueError(
                    f"the second moments of {name} are not finite: take those of another step, or estimate them again"
                )
            if bool((values < 0).any()):
                raise ValueError(
                    f"the second moments of {name} are negative (down to {float(values.min()):.2g}): give mean squares "
                    "of gradients, not first moments"
                )
        object.__setattr__(self, "second_moments", moments)

    def __repr__(self) -> str:
        return (
            f"AdamMetric(second_moments of {len(self.second_moments)} parameters, eps={self.eps}, power={self.power}, "
            f"step={self.step}, beta2={self.beta2}, source={self.source!r}, moments={self.digest()!r})"
        )

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        *,
        eps: float | None = None,
        power: float = 0.5,
        step: int | None = None,
        beta2: float | None = None,
    ) -> AdamMetric:
        """Read second moments from a file.

        Args:
            path: an optimizer's ``state_dict`` saved by ``torch.save``, as a trainer's ``optimizer.pt`` (only tensors
                and plain values are read), whose entries are named by the order in which trainers list parameters and
                checked by their shapes; a safetensors file of parameter name → second moments, whose metadata may hold
                step, beta2 and eps; a checkpoint folder with one of these; or "embedded" for those of the embedded
                policy's training. The moments of an optimizer's state are corrected by its own steps.
            model: the model that was trained.
            eps: see :class:`AdamMetric`; that of the file by default.
            power: see there.
            step: see there; for safetensors without a step in their metadata.
            beta2: see there.

        Raises:
            FileNotFoundError: when there is no such file.
            ValueError: when it holds something else, or does not fit the model.
        """
        from gradstats.gradients.second_moments import read_adam_metric

        return read_adam_metric(path, model, eps=eps, power=power, step=step, beta2=beta2)

    @classmethod
    def of_optimizer(cls, optimizer: torch.optim.Optimizer, model: nn.Module) -> AdamMetric:
        """Take second moments, steps and ε from an optimizer in use, after its first step.

        Args:
            optimizer: Adam, AdamW or a relative of torch's that keeps ``exp_avg_sq``, or accelerate's wrapper of one.
                Moments are corrected by each parameter's own steps.
            model: the model that it optimises.

        Raises:
            ValueError: for an optimizer of another kind or model, or before its first step.
        """
        from gradstats.gradients.second_moments import metric_of_optimizer

        return metric_of_optimizer(optimizer, model)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the second moments to a safetensors file that :meth:`read` reads; its metadata hold ε and the step."""
        from gradstats.gradients.second_moments import save_metric

        save_metric(self, path)

    def of_parameter(self, name: str, like: Tensor | None = None) -> Tensor:
        r"""Return :math:`P = 1/(\hat v^p + \varepsilon)` of one parameter.

        Args:
            name: the parameter.
            like: whose device and dtype P gets, at least float32; those of the second moments by default.

        Raises:
            ValueError: where P is infinite, or 0.
        """
        moments = self.second_moments[name]
        dtype = torch.promote_types(moments.dtype if like is None else like.dtype, torch.float32)
        # Powers are taken in the moments' own precision, in which they are finite.
        moments = moments.to(moments.device if like is None else like.device, torch.promote_types(moments.dtype, dtype))
        corrected = moments if self.step is None else moments / (1 - self.beta2**self.step)
        # A power of 1/2 by the square root, as Adam takes it: the two differ in the last digit.
        root = corrected.sqrt() if self.power == 0.5 else corrected.pow(self.power)
        preconditioner = root.add(self.eps).reciprocal().to(dtype)
        formula = f"P = 1/(v̂^{self.power:g} + {self.eps:g})"
        n_infinite = int((~torch.isfinite(preconditioner)).sum())
        if n_infinite:
            raise ValueError(
                f"{formula} is infinite at {n_infinite} coordinates of {name}, whose second moments are 0 or too "
                "small: give the metric an eps above 0, such as Adam's 1e-8"
            )
        n_zero = int((preconditioner == 0).sum())
        if n_zero:
            raise ValueError(
                f"{formula} is 0 at {n_zero} coordinates of {name}, whose second moments are too large for {dtype}: "
                "check where they come from, and the power"
            )
        return preconditioner

    def preconditioner(self, model: nn.Module, selection: ParameterSelection) -> dict[str, Tensor]:
        """Return P of each selected parameter, one more copy of the parameters in at least float32.

        Args:
            model: the model, by whose other parameters' names the moments of another model are recognised.
            selection: the parameters that are measured.

        Raises:
            ValueError: naming a parameter that has no second moments, or those of another shape, a name that the model
                does not have, and for a sharded model.
        """
        if is_sharded(model):
            raise ValueError("a metric needs whole parameters, and this model is sharded: measure it unsharded")
        known = {name: tensor.shape for name, tensor in model.named_parameters(remove_duplicate=False)}
        foreign = [name for name in self.second_moments if name not in known]
        if foreign:
            some = ", ".join(foreign[:3]) + (" …" if len(foreign) > 3 else "")
            raise ValueError(
                f"the second moments belong to another model: {len(foreign)} of {len(self.second_moments)} names are "
                f"not parameters of this one ({some}); its parameters are called, for example, {next(iter(known))}"
            )
        aliases = {name: alias for alias, name in selection.other_names.items() if alias in self.second_moments}
        found = {}
        for name, parameter in selection.parameters.items():
            given = name if name in self.second_moments else aliases.get(name, name)
            if given not in self.second_moments:
                raise ValueError(
                    f"there are no second moments of {name}, which is measured: give them, or leave the parameter out "
                    "with params"
                )
            shape = tuple(self.second_moments[given].shape)
            if shape != tuple(parameter.shape):
                raise ValueError(
                    f"the second moments of {name} have the shape {shape}, and the parameter {tuple(parameter.shape)}: "
                    "they belong to another model"
                )
            found[name] = self.of_parameter(given, parameter)
        return found

    def applied_to(self, selection: ParameterSelection, model: nn.Module, rollouts: Rollouts) -> ParameterSelection:
        """Return the selection of the parameters of a model, to be measured in this metric on some rollouts.

        Raises:
            ValueError: as :meth:`preconditioner` and :meth:`refuse_prompts`.
        """
        self.refuse_prompts(rollouts)
        return replace(selection, preconditioner=self.preconditioner(model, selection))

    def describe(self) -> dict[str, Any]:
        """Return what identifies the metric, for the metadata of a measurement."""
        return {
            "name": "adam",
            "eps": self.eps,
            "power": self.power,
            "step": self.step,
            "beta2": self.beta2,
            "moments": self.digest(),
            "source": self.source,
        }

    def digest(self) -> str:
        """Return a fingerprint of the second moments in float32, whatever their order, dtype and device."""
        total = hashlib.sha256()
        for name in sorted(self.second_moments):
            values = self.second_moments[name]
            total.update(f"{name}:{tuple(values.shape)}".encode())
            total.update(values.to("cpu", torch.float32).contiguous().numpy().tobytes())
        return total.hexdigest()[:_DIGITS]

    def refuse_prompts(self, rollouts: Rollouts) -> None:
        """Refuse to measure completions of a prompt from which the moments were estimated.

        Raises:
            ValueError: naming the first of these prompts.
        """
        refuse_estimated_from(self.prompts, rollouts)


def _as_tensor(name: str, values: Tensor) -> Tensor:
    try:
        return torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"the second moments of {name} are no tensor: {error}") from error


def refuse_estimated_from(prompts: frozenset[str], rollouts: Rollouts) -> None:
    """Refuse completions of prompts from which second moments were estimated.

    Args:
        prompts: their digests.
        rollouts: what is to be measured.

    Raises:
        ValueError: naming the first of these prompts.
    """
    if not prompts:
        return
    digests = prompt_digests(rollouts)
    shared = [name for name, digest in zip(rollouts.prompt_id, digests, strict=True) if digest in prompts]
    if shared:
        n_prompts = len(dict.fromkeys(shared))
        raise ValueError(
            f"the second moments were estimated from {n_prompts} of the prompts that are to be measured "
            f"({shared[0]}{' …' if n_prompts > 1 else ''}): estimate them from other prompts"
        )


def prompt_digests(rollouts: Rollouts) -> list[str]:
    """Return a digest of each completion's prompt, by its tokens."""
    return [
        hashlib.sha256(np.asarray(tokens, dtype=np.int64).tobytes()).hexdigest()[:_DIGITS]
        for tokens in rollouts.tokens("prompt_tokens")
    ]
