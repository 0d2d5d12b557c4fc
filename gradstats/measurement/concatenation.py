"""Measurements of several shards joined into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gradstats.measurement.measurement import Measurement
from gradstats.measurement.metric import metric_label
from gradstats.measurement.weighted_gradients import WeightedGradients
from gradstats.rollouts.one_policy import refuse_different_policies
from gradstats.rollouts.table import Rollouts
from gradstats.system.shards import ORIGIN

#: Entries of the metadata that measurements must share to be joined.
_SHARED = (
    "metric",
    "sketch_dim",
    "sketch_seed",
    "sketch_version",
    "block_names",
    "token_probes",
    "token_seed",
    "token_exact",
    "token_distribution",
)


def concatenate_measurements(shards: Iterable[Measurement], *, allow_policy_mismatch: bool = False) -> Measurement:
    """Stack measurements, see :meth:`gradstats.Measurement.concatenate`."""
    shards = list(shards)
    if not shards:
        raise ValueError("there are no measurements to concatenate: give at least one")
    _refuse_different(shards)
    if not allow_policy_mismatch:
        refuse_different_policies((shard.metadata for shard in shards), "measurements")
    tables = (shard.rollouts for shard in shards)
    gradients = WeightedGradients.concatenate([shard.gradients for shard in shards])
    per_token = [shard.per_token_fields() | shard.heavy_fields() for shard in shards]
    return Measurement(
        Rollouts.concatenate(tables, allow_policy_mismatch=allow_policy_mismatch),
        gradients.sq_norms_by_block,
        gradients.sketches,
        **{name: [rows for fields in per_token for rows in fields[name]] for name in per_token[0]},
        weighted={
            name: WeightedGradients.concatenate([shard.weighted[name] for shard in shards])
            for name in shards[0].weighted
        },
        metadata={name: value for name, value in shards[0].metadata.items() if name != ORIGIN}
        | {"not_finite": [row for shard in shards for row in shard.metadata.get("not_finite", [])]},
        sketches_by_block=gradients.sketches_by_block,
    )


def _refuse_different(shards: Sequence[Measurement]) -> None:
    """Refuse measurements whose values are not comparable."""
    for name in _SHARED:
        values = {str(shared_entry(shard, name)) for shard in shards}
        if len(values) > 1:
            raise ValueError(
                f"measurements differ in {name} ({', '.join(sorted(values))}): measure them with the same settings"
            )
    for name, kinds in (
        ("sketches by block", {shard.sketches_by_block is None for shard in shards}),
        ("ref_logprobs", {shard.ref_logprobs is None for shard in shards}),
        ("values", {shard.values is None for shard in shards}),
        ("fitted_values", {shard.fitted_values is None for shard in shards}),
        ("token_projections", {shard.token_projections is None for shard in shards}),
        ("the tokens measured exactly", {tuple(shard.heavy_fields()) for shard in shards}),
        ("the names of their token_weights", {tuple(shard.weighted) for shard in shards}),
    ):
        if len(kinds) > 1:
            raise ValueError(f"measurements differ in {name}: measure them with the same settings")


def shared_entry(measured: Measurement, name: str) -> object:
    """Return an entry of the metadata; measurements that record no version of the sketch have version 1."""
    if name == "metric":
        return metric_label(measured.metadata)
    if name == "sketch_version":
        return None if measured.sketches is None else measured.metadata.get(name, 1)
    return measured.metadata.get(name)
