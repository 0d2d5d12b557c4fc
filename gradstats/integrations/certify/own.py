"""A function of the user's own as what is certified: an advantage function, or a loss function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradstats.estimators import Batch, get
from gradstats.integrations.certify.batches import Batches, Completions
from gradstats.integrations.certify.invariances import Subject
from gradstats.system.user_code import errors_of_own_code, import_function

#: What a function may take, by name.
ARGUMENTS = {
    "rewards": "(B,)",
    "groups": "(B,), the number of each completion's prompt",
    "mask": "(B, T), 1 for tokens that count",
    "tokens": "(B, T), 1 for all tokens, also of a completion that is masked",
    "advantages": "(B,)",
    "logprobs": "(B, T), with gradient",
    "old_logprobs": "(B, T), of the sampler",
    "ref_logprobs": "(B, T), of a reference policy",
    "steps": "the number of accumulation steps, of which the function is called once for each",
}
_OF_LOSS = ("advantages", "logprobs")
#: What labels are tried with beside their defaults.
_PARAMETERS = {"scope": ("batch",), "rescale": (False,), "eps": (1e-4,), "eps_low": (0.2,), "eps_high": (0.2,)}


@dataclass(frozen=True, kw_only=True)
class OwnFunction(Subject):
    """An advantage function under the plain sum over tokens, or a loss function on RLOO's advantages.

    A loss that takes ``steps`` divides by them itself; else the gradients of accumulation steps are averaged, as those
    of processes are.
    """

    function: Callable[..., object]
    label: str
    takes: tuple[str, ...]

    @property
    def _is_loss(self) -> bool:
        return any(name in _OF_LOSS for name in self.takes)

    def advantages(self, batch: Completions) -> Tensor:
        """Return those of the function, or RLOO's where it is a loss."""
        if self._is_loss:
            ours = Batch(batch.rewards.numpy(), batch.mask.sum(dim=1).numpy(), batch.groups, batch.mask.numpy())
            return torch.from_numpy(get("rloo(singleton=reward)").advantages(ours)).to(batch.rewards)
        found = self._call(batch, {"rewards": batch.rewards, "groups": torch.as_tensor(batch.groups)})
        if not isinstance(found, Tensor) or found.shape not in (batch.rewards.shape, batch.mask.shape):
            raise TypeError(
                f"{self.label} returned {_described(found)}: an advantage function returns a tensor (B,) or (B, T), "
                f"here {tuple(batch.rewards.shape)} or {tuple(batch.mask.shape)}; a loss takes advantages and logprobs"
            )
        return found.detach()

    def weights(self, batch: Completions, advantages: Tensor, steps: int = 1, processes: int = 1) -> Tensor:
        """Differentiate the loss, in parts where the batch is split."""
        n = len(batch.rewards)
        if not self._is_loss:
            of_tokens = advantages if advantages.ndim == 2 else advantages[:, None]
            return torch.where(batch.mask, of_tokens, 0.0) / n
        found = torch.zeros(batch.mask.shape, dtype=batch.logprobs.dtype)
        parts = steps * processes
        for part in range(parts):
            rows = np.arange(n)[part::parts]
            picked = batch.rows(rows)
            logprobs = picked.logprobs.clone().requires_grad_()
            given = {"advantages": advantages[torch.as_tensor(rows)], "logprobs": logprobs, "steps": steps}
            loss = self._call(replace(picked, logprobs=logprobs), given)
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise TypeError(
                    f"{self.label} returned {_described(loss)}: a loss function returns one number, with a gradient "
                    "to logprobs"
                )
            (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
            found[torch.as_tensor(rows)] = -gradient / (processes if "steps" in self.takes else parts)
        return found

    def _call(self, batch: Completions, given: dict[str, Any]) -> object:
        known = {name: getattr(batch, name) for name in ("old_logprobs", "ref_logprobs")} | given
        known |= {"mask": batch.mask.to(batch.logprobs.dtype), "tokens": batch.tokens.to(batch.logprobs.dtype)}
        with errors_of_own_code(self.function, self.label):
            found = self.function(**{name: known[name] for name in self.takes})
        return found[0] if isinstance(found, tuple) else found


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"a value of type {type(value).__name__}"


def own_subjects(label: str) -> list[Subject]:
    """Return a user's function, named "module:function", on completions of both samplers.

    Raises:
        TypeError: for parameters other than those of ARGUMENTS, or a wrong result.
    """
    function = import_function(label, "the function to certify")
    taken = inspect.signature(function).parameters.values()
    unknown = [one.name for one in taken if one.name not in ARGUMENTS and one.default is inspect.Parameter.empty]
    ours = [one.name for one in taken if one.name in ARGUMENTS]
    if unknown or not ours:
        listed = "; ".join(f"{name} {what}" for name, what in ARGUMENTS.items())
        lacking = f"takes {unknown[0]!r}" if unknown else "takes nothing that is known"
        raise TypeError(f"{label} {lacking}: what a function may take is {listed}; it returns advantages or a loss")

    subjects: list[Subject] = [
        OwnFunction(
            setting={"function": label}, sampler=sampler, function=function, label=label, takes=tuple(ours),
            parameters=_PARAMETERS, has_kl="ref_logprobs" in ours,
            code=(function.__module__, __name__, errors_of_own_code.__module__),  # which say what is wrong with it
        )
        for sampler in ("on-policy", "older")
    ]  # fmt: skip
    for subject in subjects:  # what it returns is refused here
        subject.gradient(Batches.of(subject.sampler).completions(0))
    return subjects
