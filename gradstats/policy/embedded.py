"""The files of the embedded policy: weights, checkpoints of its training run, second moments of its gradients."""

from __future__ import annotations

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from gradstats.policy.checkpoint import EMBEDDED_FOLDER
from gradstats.policy.model import CausalModel


def checkpoint_names() -> list[str]:
    """Return the revisions of the embedded policy: checkpoints of its training run, in order, as ``"step-0500"``."""
    return sorted(path.stem for path in (EMBEDDED_FOLDER / "checkpoints").glob("step-*.safetensors"))


def load_checkpoint(model: CausalModel, revision: str) -> None:
    """Put the weights of a checkpoint of the training run into the embedded policy's model.

    Checkpoints are stored in bfloat16 and the final weights in float32: checkpoints carry rounding errors of about
    0.4 % per weight.

    Args:
        model: the embedded policy's model; its weights are replaced.
        revision: a name of :func:`checkpoint_names`.

    Raises:
        ValueError: for an unknown revision; the known ones are named.
    """
    if revision not in checkpoint_names():
        raise ValueError(
            f'revision is {revision!r}, but the policy "embedded" has the revisions {", ".join(checkpoint_names())}: '
            "choose one of them, or leave it out for the final weights"
        )
    stored = load_file(EMBEDDED_FOLDER / "checkpoints" / f"{revision}.safetensors")
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(stored[name])


def second_moments() -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    r"""Return the running mean :math:`v` of squared gradients at the end of the embedded policy's training.

    :math:`v \leftarrow \beta_2 v + (1 - \beta_2) g^2`, started at 0: Adam divides by
    :math:`\sqrt{v / (1 - \beta_2^{\mathrm{step}})} + \epsilon`.

    Returns:
        Parameter name → tensor in float32 (stored in bfloat16), and ``{"step", "beta2", "eps"}``.
    """
    path = EMBEDDED_FOLDER / "second_moments.safetensors"
    with safe_open(path, "pt") as stored:
        about = {name: float(value) for name, value in stored.metadata().items()}
    return {name: tensor.float() for name, tensor in load_file(path).items()}, about
