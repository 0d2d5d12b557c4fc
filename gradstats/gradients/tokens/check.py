"""The check before token scores are measured: the sum of all projections against the sequence's gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from gradstats.gradients.blocks import ParameterSelection
from gradstats.gradients.checks.deviations import TOLERANCES
from gradstats.gradients.checks.self_check import SelfCheckError, two_rows
from gradstats.gradients.chunking import default_memory_gib
from gradstats.gradients.engines.loop import sequence_gradient
from gradstats.gradients.held_parameters import whole_parameters
from gradstats.gradients.objective import make_chunk
from gradstats.gradients.precision import own_precision
from gradstats.gradients.rotary import same_class
from gradstats.gradients.tokens.projections import head_gradients, project_tokens
from gradstats.gradients.tokens.tangents import Tangents
from gradstats.policy.policy import Policy
from gradstats.policy.threads import suitable_threads
from gradstats.rollouts.table import Rollouts

_DIRECTIONS = 2
# In float64 as well: the norms of transformers compute in float32, and round differently forward and backward.
_LEAST_TOLERANCE = 1e-5


def check_projections(policy: Policy, rollouts: Rollouts, selection: ParameterSelection, seed: int) -> float:
    r"""Compare :math:`\sum_t \langle s_t, v\rangle` with :math:`\langle S, v\rangle` of one backward pass.

    The sequences are the shortest (padded) and the one of median length; there are two directions.

    Args:
        policy: the policy.
        rollouts: the sequences.
        selection: the parameters that are differentiated.
        seed: seed of the directions.

    Returns:
        The largest deviation, in units of :math:`\lVert S\rVert`.

    Raises:
        SelfCheckError: when it exceeds the dtype's tolerance.
        UnsupportedModuleError: for a model that is sharded or offloaded.
    """
    whole_parameters(policy.model, selection)
    rows = two_rows(rollouts)
    tangents = Tangents(seed, _DIRECTIONS)
    memory = default_memory_gib(policy.device)
    with suitable_threads(policy), own_precision(policy):
        projected: dict[int, Tensor] = {}
        for together in same_class(policy.model, rollouts, rows):
            chunk = make_chunk(rollouts, together, policy.device, policy.dtype)
            of_chunk = project_tokens(policy, chunk, selection, tangents, head_gradients(policy, chunk), memory)
            projected |= dict(zip(together, of_chunk, strict=True))
        worst = 0.0
        for row in rows:
            alone = make_chunk(rollouts, [row], policy.device, policy.dtype)
            total, sq_norm = torch.zeros(_DIRECTIONS, dtype=torch.float64, device=policy.device), 0.0
            for name, gradient in sequence_gradient(policy, alone, selection).items():
                wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32)).flatten()
                if name in selection.preconditioner:
                    wide = wide * selection.preconditioner[name].flatten()
                directions = tangents.dense(name, gradient.shape, range(_DIRECTIONS), wide)
                total += (directions.flatten(1) @ wide).double()
                sq_norm += float(wide.square().sum())
            difference = float((projected[row].sum(dim=0).double() - total).abs().max())
            worst = max(worst, difference / sq_norm**0.5 if sq_norm else difference)
    tolerance = max(TOLERANCES[policy.dtype], _LEAST_TOLERANCE)
    if not worst <= tolerance:
        raise SelfCheckError(
            f"token_probes fail their self-check on {policy.name} in {policy.dtype}: the projections of a sequence's "
            f"tokens add up to that of its gradient only within {worst:.2e} of the gradient's norm, where "
            f'{tolerance:.0e} is allowed: use dtype="float32", leave modules that read other modules\' weights out '
            "with params, or measure without token_probes"
        )
    return worst
