"""The options of a measurement, and what goes together among them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from pydantic import Field, ValidationInfo, field_validator

from gradstats.config.defaults import MOST_MEMORY_GIB, TOKEN_BUDGET
from gradstats.config.metrics import adam_section, estimate_section, refuse_correction
from gradstats.config.option_types import BlockNames, Count, NonNegativeInt, PositiveFloat
from gradstats.config.validation import Section

# Beyond what any study needs; a mistyped size would fill the memory.
_MOST_SKETCH_DIM, _MOST_TOKEN_PROBES = 2**24, 2**16


class MeasurementSection(Section):
    """Arguments of :func:`gradstats.measure`, and the type in which token scores are saved."""

    title: ClassVar[str] = "the measurement"
    not_arguments: ClassVar[frozenset[str]] = frozenset({"token_dtype"})

    engine: Literal["auto", "ghost", "vmap", "loop"] = Field(default="auto", description="how gradients are computed.")
    params: str | None = Field(
        default=None,
        description="regular expression of the parameters to differentiate; all trainable ones by default.",
    )
    blocks: BlockNames = Field(default="layer", description="how squared norms are split: layer, kind or parameter.")
    metric: str | None = Field(
        default=None,
        description="the norm that is measured: euclidean by default, or adam, as in "
        "adam(eps=1e-8, power=0.5, step=1000, beta2=0.999).",
    )
    second_moments: str | None = Field(
        default=None,
        validate_default=True,
        description="second moments of metric adam: a trainer's optimizer.pt, a safetensors file of parameter name → "
        "second moments, embedded, or estimate, as in estimate(estimator=rloo, prompts_per_batch=16, share=0.25).",
    )
    sketch_dim: Annotated[int, Ge(1), Le(_MOST_SKETCH_DIM)] | None = Field(
        default=16384,
        description="dimension of the random projections, which variance comparisons need; None for none.",
    )
    sketch_seed: NonNegativeInt = Field(
        default=0, description="seed of the projections; measurements to be compared need the same."
    )
    sketch_version: Literal[1, 2] | None = Field(
        default=None,
        description="random signs of the projections: 1 (kept in memory), 2 (computed on the device); 1 up to 268 "
        "million parameters and 2 above by default; measurements to be compared need the same.",
    )
    block_sketches: bool = Field(
        default=False,
        validate_default=True,
        description="also keep the sketch of each block, from which variances are compared block by block.",
    )
    token_probes: Annotated[int, Ge(0), Le(_MOST_TOKEN_PROBES)] = Field(
        default=0, description="random directions that every token's score is projected on; 0 for none."
    )
    token_exact: NonNegativeInt | Annotated[float, Ge(0)] = Field(
        default=0,
        description="tokens of each sequence measured exactly, the heaviest by the forward-only proxy: their number, "
        "or the share of the proxy that they hold.",
    )
    token_seed: NonNegativeInt = Field(default=0, description="seed of the random directions.")
    token_dtype: Literal["float32", "float16"] = Field(
        default="float32", description="type in which token projections are saved."
    )
    token_budget: Count = Field(
        default=TOKEN_BUDGET, description="most tokens that go through the model at once, padding included."
    )
    memory_gib: PositiveFloat | None = Field(
        default=None,
        description="most memory for logits and for per-sequence gradients each; a quarter of the machine's, at most "
        f"{MOST_MEMORY_GIB:g} GiB, by default.",
    )

    @field_validator("metric")
    @classmethod
    def _is_adam(cls, metric: str | None) -> str | None:
        try:
            adam_section(metric)
        except ValueError as error:
            raise ValueError(f": {error}") from error
        return metric

    @field_validator("second_moments")
    @classmethod
    def _goes_with_the_metric(cls, second_moments: str | None, info: ValidationInfo) -> str | None:
        if "metric" in info.data and (second_moments is None) != (adam_section(info.data["metric"]) is None):
            if second_moments is None:
                raise ValueError(f", and metric is {info.data['metric']!r}: give a file of second moments, or estimate")
            raise ValueError(", which only a metric uses: give metric adam as well")
        try:
            estimate = estimate_section(second_moments)
            if estimate is not None and (adam := adam_section(info.data.get("metric"))) is not None:
                refuse_correction(adam)
        except ValueError as error:
            raise ValueError(f": {error}") from error
        return second_moments

    @field_validator("block_sketches")
    @classmethod
    def _goes_with_sketches(cls, block_sketches: bool, info: ValidationInfo) -> bool:
        if block_sketches and info.data.get("sketch_dim", 0) is None:
            raise ValueError(", and sketch_dim is None: give a dimension of the sketches")
        return block_sketches

    @field_validator("token_budget", mode="before")
    @classmethod
    def _default_budget(cls, token_budget: object) -> object:
        return TOKEN_BUDGET if token_budget is None else token_budget  # files of version 0.1 contain null

    @field_validator("token_exact")
    @classmethod
    def _number_or_share(cls, token_exact: int | float) -> int | float:
        if token_exact == 1 and isinstance(token_exact, float):
            raise ValueError(
                ", neither a share below 1 nor a whole number of tokens: give 1 for one token of each sequence, or a "
                "number as large as the longest completion for all"
            )
        if token_exact > 1 and token_exact != int(token_exact):
            raise ValueError(": give a number of tokens, or a share of the proxy between 0 and 1")
        return token_exact
