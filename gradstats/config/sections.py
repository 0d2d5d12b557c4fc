"""Every section of an experiment file, declared once for Python, the command line and YAML."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import Field, field_validator

from gradstats.config.options import (
    CONFIDENCE_LEVEL,
    MOST_MEMORY_GIB,
    PROMPTS_PER_BATCH,
    TOKEN_BUDGET,
    BlockNames,
    ConfidenceLevel,
    Count,
    DisplayNames,
    ExecutorName,
    FreeOptions,
    GroupSizes,
    NonNegativeInt,
    PositiveFloat,
    RewardNames,
    Target,
    WeightType,
    adam_section,
    estimate_section,
    refuse_correction,
)
from gradstats.config.validation import Section

DEFAULT_ESTIMATORS = (
    "reinforce",
    "constant(b=optimal)",
    "group_mean",
    "rloo",
    "grpo",
    "dr_grpo",
    "token_mean(loo=True)",
    "length_weighted(alpha=0.8, loo=True)",
    "length_weighted(alpha=within_prompt, loo=True)",
    "norm_weighted(loo=True)",
)


class PolicySection(Section):
    """Arguments of :func:`gradstats.load_policy`."""

    title: ClassVar[str] = "the policy"
    not_arguments: ClassVar[frozenset[str]] = frozenset({"name"})

    name: str = Field(description='"embedded", a local folder, a .gguf file or a hub id.')
    dtype: WeightType = Field(
        default="float32",
        description="type of the weights and gradients: float32, float64, bfloat16 or float16.",
    )
    temperature: PositiveFloat = Field(
        default=1.0,
        description="temperature of the distribution whose log-probability is differentiated.",
    )
    device: str = Field(default="auto", description='"auto" (CUDA where there is one), "cpu", "cuda" or "mps".')
    revision: str | None = Field(default=None, description="commit, tag or branch on the hub.")
    adapter: str | None = Field(default=None, description="a peft adapter to apply to the model: a folder or a hub id.")
    trust_remote_code: bool = Field(default=False, description="run model code that comes with the weights.")
    allow_pickle: bool = Field(default=False, description="read pickled weights, which may run code.")


class PromptsSection(Section):
    """Arguments of :func:`gradstats.load_prompts`; ``settings`` are the source's own."""

    title: ClassVar[str] = "the problem set"

    source: str = Field(
        description='"embedded", a .jsonl, .csv or .parquet file, reasoning-gym/TASK, a hub data set, or a function of '
        "your own: module:function or path/to/file.py:function."
    )
    n: Count | None = Field(default=None, description="number of prompts; all of a file or data set by default.")
    seed: NonNegativeInt = Field(default=0, description="seed of the subset, or of the generator.")
    settings: FreeOptions = Field(
        default_factory=dict, description="options of the source, as in prompt_column=question answer_format=hashes."
    )


class SamplingSection(Section):
    """Arguments of :func:`gradstats.sample`."""

    title: ClassVar[str] = "sampling"
    often_set: ClassVar[frozenset[str]] = frozenset(
        {"group_size", "max_new_tokens", "temperature", "reward", "seed", "sampler"}
    )

    group_size: Count = Field(default=8, description="completions of each prompt.")
    max_new_tokens: Count = Field(default=1500, description="cap on a completion's tokens.")
    temperature: PositiveFloat | None = Field(
        default=None, description="the sampler's temperature; the policy's own by default."
    )
    top_p: Annotated[float, Gt(0), Le(1)] = Field(default=1.0, description="nucleus mass; 1 keeps every token.")
    top_k: NonNegativeInt = Field(default=0, description="number of tokens kept; 0 keeps all.")
    min_p: Annotated[float, Ge(0), Lt(1)] = Field(
        default=0.0,
        description="share of the likeliest token's probability below which tokens are dropped; 0 keeps all.",
    )
    repetition_penalty: PositiveFloat = Field(
        default=1.0, description="penalty on tokens that have occurred; 1 leaves the logits unchanged."
    )
    reward: RewardNames = Field(
        default=None,
        description="name of the reward, or module:function, or path/to/file.py:function, or several as name=weight; "
        "the problem set's own by default.",
    )
    seed: NonNegativeInt = Field(
        default=0, description="seed of the sampler; on the command line also of the problems."
    )
    batch_size: Count = Field(default=64, description="completions drawn together.")
    system_prompt: str | None = Field(default=None, description="a system message for the chat template.")
    template_options: FreeOptions = Field(
        default_factory=dict, description="variables of the chat template, as in enable_thinking=false."
    )
    sampler: Literal["transformers", "continuous", "vllm", "openai"] = Field(
        default="transformers",
        description="the engine: transformers, continuous (its continuous batching), vllm, or openai for a server of "
        "that API.",
    )
    base_url: str | None = Field(default=None, description="the server's address, as in http://localhost:8000/v1.")
    sampler_options: FreeOptions = Field(
        default_factory=dict, description="options of the engine, as in model=NAME concurrency=16 timeout_seconds=60."
    )
    greedy: bool = Field(
        default=False, description="also draw one greedy completion of each prompt, whose reward is ReMax's baseline."
    )


class ValuesSection(Section):
    """Which state values a run makes: those of a head (:func:`gradstats.values.fit_values`) and of prefixes.

    The latter are those of :func:`gradstats.values.monte_carlo_values`.
    """

    title: ClassVar[str] = "the state values"

    fitted: bool = Field(
        default=False,
        description="fit a ridge value head on the policy's last hidden states, cross-fitted by prompt, for gae and "
        "recipe:ppo.",
    )
    n_folds: Annotated[int, Ge(2)] = Field(
        default=5, description="folds of prompts; the values of a fold come from a head fitted to the others."
    )
    tokens_per_completion: Count = Field(
        default=64, description="the fit uses at most so many tokens of each completion, evenly spaced."
    )
    monte_carlo: NonNegativeInt = Field(
        default=0, description="completions drawn from the beginning of each step, for vine; 0 for none."
    )
    steps: str = Field(
        default=r"\n+",
        description="regular expression that ends a step in a completion's text; a line break by default.",
    )
    seed: NonNegativeInt = Field(default=0, description="seed of the completions of prefixes.")
    batch_size: Count = Field(default=64, description="completions of prefixes drawn together.")

    @field_validator("steps")
    @classmethod
    def _is_a_pattern(cls, steps: str) -> str:
        try:
            re.compile(steps)
        except re.error as error:
            raise ValueError(f", which is not a regular expression ({error}): correct it") from error
        return steps


class ExecutionSection(Section):
    """Where the work of a run is done, which changes nothing of what it finds."""

    title: ClassVar[str] = "the execution"

    executor: ExecutorName = Field(
        default="local",
        description="where shards are made: local, in this process; ray, by workers on this machine or on a cluster.",
    )
    workers: Count = Field(default=1, description="how many workers ray starts.")
    gpus_per_worker: NonNegativeInt = Field(default=0, description="GPUs of each worker; 0 for workers on CPUs.")
    ranks_per_worker: Count = Field(
        default=1,
        description="processes that hold the model together, each a part of its weights, for a model larger than one "
        "GPU; all on one machine, each with a GPU of its own where there are GPUs.",
    )
    threads: Count | None = Field(
        default=None,
        description="threads of each worker; torch's own choice by default, and 1 for a worker of ray.",
    )
    address: str | None = Field(
        default=None,
        description="a cluster of ray that runs already: auto, or its address; by default one is started on this "
        "machine.",
    )


class LengthScalingSection(Section):
    """Options of the length-scaling fit; ``published`` names data sets that are drawn in the figure."""

    title: ClassVar[str] = "length_scaling"
    not_arguments: ClassVar[frozenset[str]] = frozenset({"published"})

    confidence_level: ConfidenceLevel = Field(default=CONFIDENCE_LEVEL, description="level of the intervals.")
    published: str | None = Field(
        default=None, description="a data set to draw over the figure, see `gradstats list data`."
    )


class VarianceSection(Section):
    """Arguments of :func:`gradstats.compare`; an estimator is a label such as ``length_weighted(alpha=0.8)``."""

    title: ClassVar[str] = "the variance comparison"
    not_arguments: ClassVar[frozenset[str]] = frozenset({"confidence_level"})
    often_set: ClassVar[frozenset[str]] = frozenset({"estimators", "group_size", "reference"})

    estimators: list[str] = Field(
        default_factory=lambda: list(DEFAULT_ESTIMATORS),
        description='labels of estimators, with parameters as in "length_weighted(alpha=0.8, loo=True)".',
    )
    group_size: GroupSizes = Field(
        default=None,
        description="completions of a group, one size or several; all of a prompt by default. Single tokens are "
        "studied at the first.",
    )
    reference: str = Field(default="rloo", description="estimator that ratios are taken to.")
    target: Target = Field(
        default="auto",
        description="what cosine and bias are judged against; auto weights by importance ratios where sampler and "
        "scorer differ.",
    )
    prompts_per_batch: Count | None = Field(
        default=None,
        description=f"prompts of a batch, for the share of bias ({PROMPTS_PER_BATCH} by default) and for batch-level "
        f"estimators (by default a quarter of the prompts, at most {PROMPTS_PER_BATCH}).",
    )
    max_grad_norm: PositiveFloat | None = Field(
        default=None,
        description="norm that the gradient of a batch of prompts_per_batch prompts is clipped to, as trainers do, in "
        "every row; none by default.",
    )
    n_resamples: Count | None = Field(
        default=None,
        description="how often the prompts are shuffled into new batches for batch-level estimators; by default until "
        "the error that this leaves is small.",
    )
    confidence_level: ConfidenceLevel = Field(default=CONFIDENCE_LEVEL, description="level of the intervals.")
    seed: NonNegativeInt = Field(default=0, description="seed of the comparison.")

    @property
    def first_group_size(self) -> int | None:
        """The group size, or the first of several: of studies that take one."""
        return self.group_size[0] if isinstance(self.group_size, list) else self.group_size


class FiguresSection(Section):
    """Appearance of the figures."""

    title: ClassVar[str] = "the figures"

    venue: Literal["icml", "neurips", "iclr", "colm", "acl", "jmlr", "slide"] = Field(
        default="icml", description="whose column widths to use."
    )
    column: Literal["half", "full"] | None = Field(
        default=None, description="half or full width; one column of the venue by default."
    )
    theme: Literal["light", "dark"] = Field(default="light", description="light, or dark for slides.")
    formats: list[Literal["pdf", "svg", "png", "pgf"]] = Field(
        default_factory=lambda: ["pdf", "png"], description="file formats of each figure."
    )
    labels: DisplayNames = Field(
        default_factory=dict,
        description="names of estimators or runs in figures, as in 'otb=OTB'; in words by default.",
    )
    estimators: list[str] = Field(default_factory=list, description="estimators to draw; all compared ones by default.")
    order: Literal["value", "listed"] = Field(default="value", description="rows by value, or as they are listed.")


# Beyond what any study needs; a mistyped size would fill the memory.
_MOST_SKETCH_DIM, _MOST_TOKEN_PROBES = 2**24, 2**16


class MeasurementSection(Section):
    """Arguments of :func:`gradstats.measure`, and the type in which token scores are saved."""

    title: ClassVar[str] = "the measurement"
    not_arguments: ClassVar[frozenset[str]] = frozenset({"token_dtype"})
    often_set: ClassVar[frozenset[str]] = frozenset({"engine", "metric", "second_moments", "sketch_dim"})

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
    recompute: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="run the layers again in the backward pass instead of holding their activations: on, off, or auto, "
        "where the activations would take more than memory_gib, or than a quarter of the machine's memory.",
    )

    @field_validator("metric")
    @classmethod
    def _is_adam(cls, metric: str | None) -> str | None:
        try:
            adam_section(metric)
        except ValueError as error:
            raise ValueError(f": {error}") from error
        return metric

    # `info` is pydantic's ValidationInfo, a protocol that cannot be checked when the function is called.
    @field_validator("second_moments")
    @classmethod
    def _goes_with_the_metric(cls, second_moments: str | None, info: Any) -> str | None:
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
    def _goes_with_sketches(cls, block_sketches: bool, info: Any) -> bool:
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
