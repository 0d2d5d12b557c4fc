"""Adam's second moments from the files of a trainer, from tensors of the user's, or from a running optimizer."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gradstats.config.metrics import ESTIMATE, adam_section, estimate_section
from gradstats.gradients.metric import AdamMetric
from gradstats.gradients.parameter_order import named_states, own_names
from gradstats.policy.checkpoint import EMBEDDED_FOLDER

# Files of a checkpoint folder that may hold second moments, in the order in which they are looked for.
_IN_FOLDER = ("second_moments.safetensors", "optimizer.pt", "optimizer.bin", "optimizer.safetensors")
# What Adam and its variants call second moments; AMSGrad divides by their largest values.
_MOMENTS = ("max_exp_avg_sq", "exp_avg_sq")
_SUFFIXES = tuple(f"{mark}{name}" for name in _MOMENTS for mark in "./")
_WRITTEN = "gradstats second moments"


def read_metric(metric: str | None, second_moments: str | None, model: nn.Module) -> AdamMetric | None:
    """Return the metric that the options of a measurement name; None for the Euclidean one.

    Args:
        metric: as for :func:`gradstats.measure`, a label.
        second_moments: as there.
        model: the model that is measured, by whose parameters the entries of an optimizer's state are named.

    Raises:
        ValueError, FileNotFoundError: as for :meth:`gradstats.AdamMetric.read`, and where no second moments are given
            or they are to be estimated, which takes other rollouts.
    """
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
    return read_adam_metric(second_moments, model, **adam.model_dump())


def read_adam_metric(
    path: str | os.PathLike[str],
    model: nn.Module,
    *,
    eps: float | None = None,
    power: float = 0.5,
    step: int | None = None,
    beta2: float | None = None,
) -> AdamMetric:
    """Read second moments from a file, see :meth:`gradstats.AdamMetric.read`."""
    file = moments_file(path)
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


def metric_of_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> AdamMetric:
    """Take second moments from an optimizer in use, see :meth:`gradstats.AdamMetric.of_optimizer`."""
    # The optimizer of accelerate holds the one that it wraps.
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer  # pyright: ignore[reportAttributeAccessIssue]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    states, groups = {}, {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in names and optimizer.state.get(parameter):
                states[names[id(parameter)]] = optimizer.state[parameter]
                groups[names[id(parameter)]] = group
    if not states:
        raise ValueError(
            "the optimizer has no state for a parameter of the model: take its second moments after its first step, "
            "from the model that it optimises"
        )
    return _metric(states, groups, type(optimizer).__name__)


def moments_file(path: str | os.PathLike[str]) -> Path:
    """Return the file that holds the second moments, of a path that may be a checkpoint folder or "embedded".

    Raises:
        FileNotFoundError: when there is none.
        ValueError: for a folder of partitions, with the command that joins them.
    """
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
    """Return the digests of the prompts from which the second moments of a safetensors file were estimated."""
    with safe_open(path, "pt") as stored:
        return _prompts_in(stored.metadata() or {})


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


def save_metric(metric: AdamMetric, path: str | os.PathLike[str]) -> None:
    """Write a metric's second moments, see :meth:`gradstats.AdamMetric.save`."""
    from safetensors.torch import save_file

    from gradstats.system.files import atomic_path

    about = {
        "format": _WRITTEN,
        "eps": repr(metric.eps),
        "source": metric.source,
        "prompts": ",".join(sorted(metric.prompts)),
    }
    if metric.step is not None:
        about |= {"step": str(metric.step), "beta2": repr(metric.beta2)}
    tensors = {name: values.cpu().contiguous() for name, values in metric.second_moments.items()}
    with atomic_path(path) as partial:
        save_file(tensors, partial, about)
