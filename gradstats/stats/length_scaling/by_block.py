"""The length exponent of each block of parameters, and of the energy of single tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.measurement.metric import metric_label
from gradstats.stats.length_scaling.alpha import LengthScalingFit, fit_length_scaling
from gradstats.stats.measured import MeasuredBlocks, MeasuredNorms
from gradstats.stats.tokens.token_sums import has_token_energies, summed_energy


def length_scaling_by_block(
    measured: MeasuredBlocks, *, method: str = "ols", confidence_level: float = CONFIDENCE_LEVEL
) -> pd.DataFrame:
    r"""Fit α of each block b of parameters, :math:`‖S_b‖ ∝ T^{α_b}`, and of the whole gradient.

    Args:
        measured: a measurement with ``.sq_norms_by_block``.
        method: as in :func:`gradstats.fit_length_scaling`.
        confidence_level: of the intervals.

    Returns:
        The rows of :meth:`gradstats.stats.LengthScalingFit.to_frame` with a column ``block`` in front (``"total"``
        last) and ``share_of_sq_norm``, the block's share of Σ‖S‖². A block whose gradient vanishes on some sequence has
        no logarithm and gets NaN.

    Example:
        >>> import numpy as np, pandas as pd
        >>> import gradstats as gs
        >>> lengths = np.array([10, 15, 20, 30, 40, 60])
        >>> rollouts = gs.Rollouts.from_sequences(
        ...     [[5]] * 6, [[1] * length for length in lengths], rewards=[1.0, 0.0] * 3, prompt_ids=list("abcdef")
        ... )
        >>> norms = pd.DataFrame({"layer 0": lengths**1.0, "layer 1": lengths**1.6})  # exponents of 0.5 and 0.8
        >>> nothing = [np.zeros(length) for length in lengths]
        >>> measured = gs.Measurement(rollouts, norms, None, nothing, nothing, nothing, nothing)
        >>> gs.length_scaling_by_block(measured)[["block", "alpha"]].round(2).to_numpy().tolist()
        [['layer 0', 0.5], ['layer 1', 0.8], ['total', 0.76]]
    """
    by_block = measured.sq_norms_by_block
    columns = {str(name): by_block[name].to_numpy(dtype=float) for name in by_block}
    columns["total"] = np.asarray(measured.sq_norms, dtype=float)
    rows = []
    for name, sq_norms in columns.items():
        row = pd.DataFrame([{"n": len(sq_norms), "method": method}])
        if np.all(sq_norms > 0):
            row = fit_length_scaling(
                lengths=measured.lengths,
                sq_norms=sq_norms,
                groups=measured.rollouts.prompt_id,
                method=method,
                truncated=measured.rollouts.truncated,
            ).to_frame(confidence_level)
        row.insert(0, "block", name)
        row["share_of_sq_norm"] = sq_norms.sum() / columns["total"].sum()
        rows.append(row)
    frame = pd.concat(rows, ignore_index=True)
    frame.attrs["metric"] = metric_label(getattr(measured, "metadata", {}))
    return frame


def fit_energy_scaling(measured: MeasuredNorms, *, method: str = "ols") -> LengthScalingFit:
    r"""Return :math:`α_\mathrm{energy}`, the exponent of :math:`\sum_t‖s_t‖²`: how the summed energy of single tokens
    grows with length.

    The difference from α of the whole gradient is due to correlation between tokens.

    Args:
        measured: a measurement with ``.token_energy``.
        method: as in :func:`gradstats.fit_length_scaling`.

    Raises:
        ValueError: without token energies.
    """
    if not has_token_energies(measured):
        raise ValueError("the measurement has no token energies: measure with token_probes=…")
    fit = fit_length_scaling(
        lengths=measured.lengths,
        sq_norms=summed_energy(measured)[0],
        groups=measured.rollouts.prompt_id,
        method=method,
        truncated=measured.rollouts.truncated,
    )
    return replace(fit, metric=metric_label(getattr(measured, "metadata", {})))
