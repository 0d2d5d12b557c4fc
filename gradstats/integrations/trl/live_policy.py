"""The model that a trainer trains, as a policy that can be measured, and afterwards exactly as it was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from gradstats.policy.policy import Policy, as_policy

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
    cent. On leaving, modes, forward methods and the states of all random generators are what they were; gradients that
    the trainer has accumulated are never touched.

    Args:
        trainer: the trainer.
    """
    # Without keep_fp32_wrapper, accelerate takes the wrapper off the live model.
    model: nn.Module = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=True)
    training = [module for module in model.modules() if module.training]
    wrapped = vars(model).get("forward")
    original = vars(model).get("_original_forward")
    devices = [model_device] if (model_device := next(model.parameters()).device).type == "cuda" else []
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 # the generators that a trainer may use
    with torch.random.fork_rng(devices=devices):
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
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
