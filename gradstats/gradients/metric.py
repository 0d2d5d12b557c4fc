"""Adam's metric, and where its second moments come from: checkpoints of trainers, tensors, a running optimizer."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gradstats.config.options import ESTIMATE, adam_section, estimate_section, of_type
from gradstats.gradients.parameters import ParameterSelection, named_states, own_names
from gradstats.policy.checkpoint import EMBEDDED_FOLDER
from gradstats.policy.model import unwrapped
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
                f"second_moments of the metric are {of_type(self.second_moments)}: give parameter name → "
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
        file, model = moments_file(path), unwrapped(model)
        if file.suffix == ".safetensors":
            metric = _from_safetensors(file, model)
        else:
            for name, given in (("step", step), ("beta2", beta2)):
                if given is not None:
                    raise ValueError(f"{name} is {given}, but {file} records its own {name}: leave {name} out")
            metric = _from_state(_unpickled(file), model, str(file.name))
        return AdamMetric(
            metric.second_moments,
            metric.eps if eps is None else eps,
            power,
            metric.step if step is None else step,
            metric.beta2 if beta2 is None else beta2,
            metric.source,
            metric.prompts,
        )

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
        # The optimizer of accelerate holds the one that it wraps.
        while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
            optimizer = optimizer.optimizer  # pyright: ignore[reportAttributeAccessIssue]
        names = {id(parameter): name for name, parameter in unwrapped(model).named_parameters()}
        states, groups = {}, {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) in names and optimizer.state.get(parameter):
                    states[names[id(parameter)]] = optimizer.state[parameter]
                    groups[names[id(parameter)]] = group
        if not states:
            raise ValueError(
                "the optimizer has no state for a parameter of the model: take its second moments after its first "
                "step, from the model that it optimises"
            )
        return _metric(states, groups, type(optimizer).__name__)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the second moments to a safetensors file that :meth:`read` reads; its metadata hold ε and the step.

        Raises:
            FileExistsError: when a file lies there that this method did not write.
        """
        from safetensors.torch import save_file

        from gradstats.system.files import atomic_path
        from gradstats.system.outputs import OutputType, claim

        claim(path, OutputType("a file of second moments", _is_written))
        about = {
            "format": _WRITTEN,
            "eps": repr(self.eps),
            "source": self.source,
            "prompts": ",".join(sorted(self.prompts)),
        }
        if self.step is not None:
            about |= {"step": str(self.step), "beta2": repr(self.beta2)}
        tensors = {name: values.cpu().contiguous() for name, values in self.second_moments.items()}
        with atomic_path(path) as partial:
            save_file(tensors, partial, about)

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
            ValueError: as :meth:`preconditioner`, and for a prompt from which the moments were estimated.
        """
        refuse_estimated_from(self.prompts, rollouts)
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


def _as_tensor(name: str, values: Tensor) -> Tensor:
    try:
        return torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"the second moments of {name} are no tensor: {error}") from error


def refuse_estimated_from(prompts: frozenset[str], rollouts: Rollouts) -> None:
    """Refuse completions of prompts from which second moments were estimated."""
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


# Files of a checkpoint folder that may hold second moments, in the order in which they are looked for.
_IN_FOLDER = ("second_moments.safetensors", "optimizer.pt", "optimizer.bin", "optimizer.safetensors")
# What Adam and its variants call second moments; AMSGrad divides by their largest values.
_MOMENTS = ("max_exp_avg_sq", "exp_avg_sq")
_SUFFIXES = tuple(f"{mark}{name}" for name in _MOMENTS for mark in "./")
_WRITTEN = "gradstats second moments"


def read_metric(metric: str | None, second_moments: str | None, model: nn.Module) -> AdamMetric | None:
    """Return the metric that the options of a measurement name; None for the Euclidean one."""
    adam = adam_section(metric)
    if adam is None:
        return None
    if second_moments is None:
        raise ValueError(
            f"metric is {metric!r} without second_moments: give a file, or metric=gradstats.AdamMetric(second_moments)"
        )
    if estimate_section(second_moments) is not None:
        raise ValueError(
            f"second_moments is {second_moments!r}: an estimate needs other prompts than those that are measured, "
            "which runs and the command line set aside; here, call gradstats.estimate_second_moments with rollouts of "
            "such prompts, and give what it returns as metric"
        )
    return AdamMetric.read(second_moments, model, **adam.model_dump())


def moments_file(path: str | os.PathLike[str]) -> Path:
    """Return the file that holds the second moments, of a path that may be a checkpoint folder or "embedded"."""
    if os.fspath(path) == "embedded":
        return EMBEDDED_FOLDER / "second_moments.safetensors"
    given = Path(path)
    if given.is_file():
        return given
    if not given.is_dir():
        raise FileNotFoundError(
            f"second_moments is {os.fspath(path)!r}, and there is no such file: give a trainer's optimizer.pt, its "
            f"checkpoint folder, a safetensors file, or {ESTIMATE}"
        )
    for name in _IN_FOLDER:
        if (given / name).is_file():
            return given / name
    if any(given.rglob("*zero_pp_rank*")):
        raise ValueError(
            f"{given} holds the partitions of a DeepSpeed optimizer, which only DeepSpeed can join: save its second "
            "moments by parameter name with deepspeed.utils.safe_get_full_optimizer_state, as a safetensors file"
        )
    if any(given.rglob("*.distcp")):
        raise ValueError(
            f"{given} holds a sharded optimizer: join it first, with `python -m "
            "torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE`, and give that file"
        )
    raise FileNotFoundError(f"the folder {given} holds none of {', '.join(_IN_FOLDER)}: give the file itself")


def _from_safetensors(file: Path, model: nn.Module) -> AdamMetric:
    """Read parameter name → second moments; the metadata may hold step, beta2, eps, source and prompts."""
    try:
        with safe_open(file, "pt") as stored:
            about: dict[str, str] = stored.metadata() or {}
            names = list(stored.keys())
            of_state = [name for name in names if name.endswith(_SUFFIXES)]
            tensors = {name: stored.get_tensor(name) for name in of_state or names}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} cannot be read as safetensors ({error}): write it again") from error
    # Where a state holds both, the largest values replace the running ones.
    ordered = sorted(tensors, key=lambda name: name.endswith(tuple(s for s in _SUFFIXES if "max" in s)))
    moments = {_without_suffix(name): tensors[name] for name in ordered}
    wide = {own: moments[name].float() for name, own in own_names(moments, model).items()}
    try:
        step = int(float(about["step"])) if "step" in about else None
        beta2, eps = float(about.get("beta2", 0.999)), float(about.get("eps", 1e-8))
    except ValueError as error:
        raise ValueError(f"the metadata of {file} hold no numbers for step, beta2 and eps: {about}") from error
    return AdamMetric(wide, eps, 0.5, step, beta2, about.get("source", file.name), _prompts_in(about))


def prompts_of_moments(path: str | os.PathLike[str]) -> frozenset[str]:
    """Return the digests of the prompts from which second moments on file were estimated, of any path that is read."""
    file = moments_file(path)
    if file.suffix != ".safetensors":  # an optimizer's
        return frozenset()
    with safe_open(file, "pt") as stored:
        return _prompts_in(stored.metadata() or {})


def _is_written(file: Path) -> bool:
    """Return whether a file was written by :meth:`AdamMetric.save`."""
    try:
        with safe_open(file, "pt") as stored:
            return (stored.metadata() or {}).get("format") == _WRITTEN
    except (SafetensorError, OSError):
        return False


def _prompts_in(about: Mapping[str, str]) -> frozenset[str]:
    return frozenset(filter(None, about.get("prompts", "").split(",")))


def _without_suffix(name: str) -> str:
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _unpickled(file: Path) -> Mapping[str, Any]:
    """Return an optimizer's state_dict; tensors and plain values only, so that reading runs no code."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{file} holds more than tensors and numbers, and is not read since that could run code: save the "
            "state_dict of the optimizer alone, or its second moments as safetensors"
        ) from error
    except (RuntimeError, EOFError, OSError, LookupError, ValueError, AttributeError) as error:
        # What torch raises for a file of another kind depends on its first bytes; some errors have no text.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{file} cannot be read ({reason}): save it again") from error
    for key in ("optimizer", "optimizer_state_dict", "optim"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not isinstance(found.get("state"), Mapping):
        raise ValueError(
            f"{file} holds no optimizer's state_dict, with state and param_groups: give a trainer's optimizer.pt"
        )
    return found


def _from_state(saved: Mapping[str, Any], model: nn.Module, source: str) -> AdamMetric:
    states, groups = named_states(saved, model)
    return _metric(states, groups, source)


def _metric(
    states: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Mapping[str, Any]], source: str
) -> AdamMetric:
    r"""Return the metric of an optimizer's state, with moments that are corrected by each parameter's own steps."""
    moments: dict[str, Tensor] = {}
    eps: set[float] = set()
    steps: set[int] = set()
    for name, state in states.items():
        key = next((key for key in _MOMENTS if key in state), None)
        if key is None:
            raise ValueError(
                f"the state of {name} holds {', '.join(map(str, state)) or 'nothing'} and no second moments "
                "(exp_avg_sq): only Adam, AdamW and their relatives in torch have this metric"
            )
        group = groups.get(name, {})
        values = state[key].detach()
        values = values.full_tensor() if isinstance(values, DTensor) else values
        step = int(state.get("step", group.get("step", 0)))
        if step < 1:
            raise ValueError(f"the state of {name} records no step: take the second moments after the first step")
        _, beta2 = group.get("betas", (0.9, 0.999))
        moments[name] = values.to(torch.promote_types(values.dtype, torch.float32)) / (1 - float(beta2) ** step)
        eps.add(float(group.get("eps", 1e-8)))
        steps.add(step)
    if len(eps) > 1:
        raise ValueError(
            f"the optimizer's groups differ in eps ({', '.join(map(str, sorted(eps)))}): give the metric one"
        )
    return AdamMetric(moments, eps.pop(), source=f"{source} after {max(steps)} steps")
