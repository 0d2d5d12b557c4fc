"""Every section of an experiment file, declared once for Python, the command line and YAML."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import field_validator

from gradstats.config.options import (
    CONFIDENCE_LEVEL,
    MOST_MEMORY_GIB,
    PROMPTS_PER_BATCH,
    TOKEN_BUDGET,
    BlockNames,
    ColumnWidth,
    ConfidenceLevel,
    Count,
    DisplayNames,
    ExecutorName,
    FigureFormat,
    FreeOptions,
    GroupSizes,
    NonNegativeInt,
    PositiveFloat,
    RewardNames,
    Target,
    Temperature,
    Theme,
    Venue,
    WeightType,
    adam_section,
    estimate_section,
    refuse_correction,
)
from gradstats.config.validation import Section, setting

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


#: With fewer measured prompts, proxies of the others teach nothing.
FEWEST_MEASURED = 20


class PolicySection(Section):
    """Arguments of :func:`gradstats.load_policy`."""

    title: ClassVar[str] = "the policy"

    name: str = setting(
        ..., '"embedded", a local folder, a .gguf file or a hub id.', "samples, no argument, of the question"
    )
    dtype: WeightType = setting(
        "float32", "type of the weights and gradients: float32, float64, bfloat16 or float16.", "samples"
    )
    temperature: Temperature = setting(
        1.0, "temperature of the distribution whose log-probability is differentiated.", "samples, of the question"
    )
    device: str = setting("auto", '"auto" (CUDA where there is one), "cpu" or "cuda".', "samples")
    revision: str | None = setting(None, "commit, tag or branch on the hub.", "samples, of the question")
    adapter: str | None = setting(None, "a peft adapter to apply to the model: a folder or a hub id.", "samples")
    trust_remote_code: bool = setting(False, "run model code that comes with the weights.", "samples")
    allow_pickle: bool = setting(False, "read pickled weights, which may run code.", "samples")


class PromptsSection(Section):
    """Arguments of :func:`gradstats.load_prompts`; ``settings`` are the source's own."""

    title: ClassVar[str] = "the problem set"

    source: str = setting(
        ...,
        '"embedded", a .jsonl, .csv or .parquet file, reasoning-gym/TASK, a hub data set, or a function of '
        "your own: module:function or path/to/file.py:function.",
        "samples, of the question",
    )
    n: Count | None = setting(None, "number of prompts; all of a file or data set by default.", "samples, grows")
    seed: NonNegativeInt = setting(0, "seed of the subset, or of the generator.", "samples")
    settings: FreeOptions = setting(
        dict, "options of the source, as in prompt_column=question answer_format=hashes.", "samples, of the question"
    )


class DrawingSection(Section):
    """How the tokens of a completion are drawn; by default from the policy's own distribution, untruncated."""

    title: ClassVar[str] = "sampling"

    max_new_tokens: Count = setting(1500, "cap on a completion's tokens.", "samples, often set, of the question")
    temperature: Temperature | None = setting(
        None, "the sampler's temperature; the policy's own by default.", "samples, often set, reshapes"
    )
    top_p: Annotated[float, Gt(0), Le(1)] = setting(
        1.0, "nucleus mass; 1 keeps every token.", "samples, reshapes, truncates"
    )
    top_k: NonNegativeInt = setting(0, "number of tokens kept; 0 keeps all.", "samples, reshapes, truncates")
    min_p: Annotated[float, Ge(0), Lt(1)] = setting(
        0.0,
        "share of the likeliest token's probability below which tokens are dropped; 0 keeps all.",
        "samples, reshapes, truncates",
    )
    repetition_penalty: PositiveFloat = setting(
        1.0,
        "penalty on tokens that have occurred; 1 leaves the logits unchanged.",
        "samples, reshapes",
    )


class SamplingSection(DrawingSection):
    """Arguments of :func:`gradstats.sample`."""

    group_size: Count = setting(8, "completions of each prompt.", "samples, often set, of the question, grows")
    reward: RewardNames = setting(
        None,
        "name of the reward (exact, math, reasoning_gym, embedded), or module:function, or path/to/file.py:function, "
        "or several as name=weight; "
        "the problem set's own by default.",
        "samples, often set, of the question, regraded",
    )
    seed: NonNegativeInt = setting(
        0, "seed of the sampler; on the command line also of the problems.", "samples, often set"
    )
    batch_size: Count = setting(64, "completions drawn together.", "samples")
    system_prompt: str | None = setting(None, "a system message for the chat template.", "samples, of the question")
    template_options: FreeOptions = setting(
        dict, "variables of the chat template, as in enable_thinking=false.", "samples"
    )
    sampler: Literal["transformers", "continuous", "vllm", "openai"] = setting(
        "transformers",
        "the engine: transformers, continuous (its continuous batching), vllm, or openai for a server of that API.",
        "samples, often set, of the question",
    )
    base_url: str | None = setting(None, "the server's address, as in http://localhost:8000/v1.", "samples")
    sampler_options: FreeOptions = setting(
        dict, "options of the engine, as in model=NAME concurrency=16 timeout_seconds=60.", "samples"
    )
    greedy: bool = setting(
        False, "also draw one greedy completion of each prompt, whose reward is ReMax's baseline.", "samples"
    )


class ValuesSection(Section):
    """Which state values a run makes: those of a head (:func:`gradstats.values.fit_values`) and of prefixes.

    The latter are those of :func:`gradstats.values.monte_carlo_values`.
    """

    title: ClassVar[str] = "the state values"

    fitted: bool = setting(
        False,
        "fit a ridge value head on the policy's last hidden states, cross-fitted by prompt, for gae and recipe:ppo.",
        "values",
    )
    n_folds: Annotated[int, Ge(2)] = setting(
        5, "folds of prompts; the values of a fold come from a head fitted to the others.", "values"
    )
    tokens_per_completion: Count = setting(
        64, "the fit uses at most so many tokens of each completion, evenly spaced.", "values"
    )
    monte_carlo: NonNegativeInt = setting(
        0, "completions drawn from the beginning of each step, for vine; 0 for none.", "values"
    )
    steps: str = setting(
        r"\n+", "regular expression that ends a step in a completion's text; a line break by default.", "values"
    )
    seed: NonNegativeInt = setting(0, "seed of the completions of prefixes.", "values")
    batch_size: Count = setting(64, "completions of prefixes drawn together.", "values")

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

    executor: ExecutorName = setting(
        "local",
        "where shards are made: local, on this machine; ray, by workers on this machine or on a cluster, all of which "
        "see the run directory.",
        "nothing",
    )
    workers: Count = setting(
        1, "how many processes make the shards; a single one on this machine is this one.", "nothing"
    )
    gpus_per_worker: NonNegativeInt | None = setting(
        None,
        "GPUs of each worker, 0 for CPUs; by default one for each rank where there are GPUs and policy.device takes "
        "them.",
        "nothing",
    )
    ranks_per_worker: Count = setting(
        1,
        "processes that hold the model together, each a part of its weights, for a model larger than one "
        "GPU; all on one machine, each with a GPU of its own where there are GPUs.",
        "nothing",
    )
    threads: Count | None = setting(
        None, "threads of each process; torch's own choice by default, and 1 where there are workers.", "nothing"
    )
    address: str | None = setting(
        None,
        "a cluster of ray that runs already: auto, or its address; by default one is started on this machine.",
        "nothing",
    )

    def with_gpus(self, device: str, n_gpus: float) -> ExecutionSection:
        """Settle the GPUs of each worker, for a policy's device and the number of GPUs that there are."""
        if self.gpus_per_worker is not None:
            return self
        taken = self.ranks_per_worker if n_gpus and device in ("auto", "cuda") else 0
        return self.model_copy(update={"gpus_per_worker": taken})

    @property
    def several(self) -> bool:
        """Whether other processes than this one make the shards."""
        return self.executor == "ray" or self.workers * self.ranks_per_worker > 1

    @property
    def processors_per_worker(self) -> int:
        """How many processors a worker of ray uses."""
        return (self.threads or 1) * self.ranks_per_worker

    def given_to_each(self) -> str:
        """Say what a worker of ray is given, where that is settled."""
        gpus = f"{self.gpus_per_worker} GPU" if self.gpus_per_worker else "no GPU"
        return f"each with {self.processors_per_worker} CPU and {gpus}"

    def require_gpus(self, n_gpus: float) -> None:
        """Refuse more workers than a machine has GPUs for, where their number is settled."""
        if n_gpus < (self.gpus_per_worker or 0) * self.workers:
            raise ValueError(
                f"execution.workers is {self.workers} with {self.gpus_per_worker} GPU each, and this machine has "
                f"{n_gpus:g}: lower the number of workers, connect to a cluster (execution.address), or let workers "
                "compute on CPUs (execution.gpus_per_worker: 0)"
            )


class LengthScalingSection(Section):
    """Options of the length-scaling fit; ``published`` names data sets that are drawn in the figure."""

    title: ClassVar[str] = "length_scaling"

    confidence_level: ConfidenceLevel = setting(CONFIDENCE_LEVEL, "level of the intervals.", "answers")
    published: str | None = setting(
        None, "a data set to draw over the figure, see `gradstats list data`.", "answers, no argument"
    )


class VarianceSection(Section):
    """Arguments of :func:`gradstats.compare`; an estimator is a label such as ``length_weighted(alpha=0.8)``."""

    title: ClassVar[str] = "the variance comparison"

    estimators: list[str] = setting(
        lambda: list(DEFAULT_ESTIMATORS),
        'labels of estimators, with parameters as in "length_weighted(alpha=0.8, loo=True)".',
        "answers, often set",
    )
    group_size: GroupSizes = setting(
        None,
        "completions of a group, one size or several; all of a prompt by default. Single tokens are "
        "studied at the first.",
        "answers, often set, of the question",
    )
    reference: str = setting("rloo", "estimator that ratios are taken to.", "answers, often set, of the question")
    target: Target = setting(
        "auto",
        "what cosine and bias are judged against; auto weights by importance ratios where sampler and scorer differ.",
        "answers",
    )
    prompts_per_batch: Count | None = setting(
        None,
        f"prompts of a batch, for the share of bias ({PROMPTS_PER_BATCH} by default) and for batch-level "
        f"estimators (by default a quarter of the prompts, at most {PROMPTS_PER_BATCH}).",
        "answers",
    )
    max_grad_norm: PositiveFloat | None = setting(
        None,
        "norm that the gradient of a batch of prompts_per_batch prompts is clipped to, as trainers do, in "
        "every row; none by default.",
        "answers",
    )
    n_resamples: Count | None = setting(
        None,
        "how often the prompts are shuffled into new batches for batch-level estimators; by default until "
        "the error that this leaves is small.",
        "answers",
    )
    confidence_level: ConfidenceLevel = setting(CONFIDENCE_LEVEL, "level of the intervals.", "answers, no argument")
    seed: NonNegativeInt = setting(0, "seed of the comparison.", "answers")

    @property
    def first_group_size(self) -> int | None:
        """The group size, or the first of several: of studies that take one."""
        return self.group_size[0] if isinstance(self.group_size, list) else self.group_size


class FiguresSection(Section):
    """Appearance of the figures."""

    title: ClassVar[str] = "the figures"

    venue: Venue = setting("icml", "whose column widths to use.", "nothing")
    column: ColumnWidth | None = setting(None, "half or full width; one column of the venue by default.", "nothing")
    theme: Theme = setting("light", "light, or dark for slides.", "nothing")
    formats: list[FigureFormat] = setting(lambda: ["pdf", "png"], "file formats of each figure.", "nothing")
    labels: DisplayNames = setting(
        dict, "names of estimators or runs in figures, as in 'otb=OTB'; in words by default.", "nothing"
    )
    estimators: list[str] = setting(list, "estimators to draw; all compared ones by default.", "nothing")
    order: Literal["value", "listed"] = setting("value", "rows by value, or as they are listed.", "nothing")


# Beyond what any study needs; a mistyped size would fill the memory.
_MOST_SKETCH_DIM, _MOST_TOKEN_PROBES = 2**24, 2**16


class MeasurementSection(Section):
    """Arguments of :func:`gradstats.measure`, and the type in which token scores are saved."""

    title: ClassVar[str] = "the measurement"

    engine: Literal["auto", "ghost", "vmap", "loop"] = setting(
        "auto", "how gradients are computed.", "measurements, often set"
    )
    params: str | None = setting(
        None,
        "regular expression of the parameters to differentiate; all trainable ones by default.",
        "measurements, of the question, recorded",
    )
    blocks: BlockNames = setting("layer", "how squared norms are split: layer, kind or parameter.", "measurements")
    n_prompts: Annotated[int, Ge(FEWEST_MEASURED)] | None = setting(
        None,
        "prompts whose gradients are measured, a random sample; all by default. Of the others a forward pass gives "
        "proxies, which shorten the intervals of variances where they help.",
        "measurements, grows, no argument",
    )
    metric: str | None = setting(
        None,
        "the norm that is measured: euclidean by default, or adam, as in "
        "adam(eps=1e-8, power=0.5, step=1000, beta2=0.999).",
        "measurements, often set, shared",
    )
    second_moments: str | None = setting(
        None,
        "second moments of metric adam: a trainer's optimizer.pt, a safetensors file of parameter name → "
        "second moments, embedded, or estimate, as in estimate(estimator=rloo, prompts_per_batch=16, share=0.25).",
        "measurements, often set",
        validate_default=True,
    )
    sketch_dim: Annotated[int, Ge(1), Le(_MOST_SKETCH_DIM)] | None = setting(
        16384,
        "dimension of the random projections, which variance comparisons need; None for none.",
        "measurements, often set, recorded, shared",
    )
    sketch_seed: NonNegativeInt = setting(
        0, "seed of the projections; measurements to be compared need the same.", "measurements, recorded, shared"
    )
    sketch_version: Literal[1, 2] | None = setting(
        None,
        "random signs of the projections: 1 (kept in memory), 2 (computed on the device); 1 up to 268 "
        "million parameters and 2 above by default; measurements to be compared need the same.",
        "measurements, shared",
    )
    block_sketches: bool = setting(
        False,
        "also keep the sketch of each block, from which variances are compared block by block.",
        "measurements",
        validate_default=True,
    )
    token_probes: Annotated[int, Ge(0), Le(_MOST_TOKEN_PROBES)] = setting(
        0, "random directions that every token's score is projected on; 0 for none.", "measurements, recorded, shared"
    )
    token_exact: NonNegativeInt | Annotated[float, Ge(0)] = setting(
        0,
        "tokens of each sequence measured exactly, the heaviest by the forward-only proxy: their number, "
        "or the share of the proxy that they hold.",
        "measurements, recorded, shared",
    )
    token_seed: NonNegativeInt = setting(0, "seed of the random directions.", "measurements, recorded, shared")
    token_dtype: Literal["float32", "float16"] = setting(
        "float32", "type in which token projections are saved.", "measurements, no argument"
    )
    adapter_residual: bool = setting(
        False,
        "also keep, as a column of the rollouts, how far the policy's adapter moves each token's last hidden state, "
        "by one more forward pass; arca needs it.",
        "measurements",
    )
    token_budget: Count | None = setting(
        None,
        "most tokens that go through the model at once, padding included; by default "
        f"{TOKEN_BUDGET} on a CPU, on a GPU what fits.",
        "measurements, divides",
    )
    memory_gib: PositiveFloat | None = setting(
        None,
        "most memory for logits and for per-sequence gradients each; by default a quarter of the device's, on a CPU at "
        f"most {MOST_MEMORY_GIB:g} GiB.",
        "measurements, divides",
    )
    recompute: Literal["auto", "on", "off"] = setting(
        "auto",
        "run the layers again in the backward pass instead of holding their activations: on, off, or auto, "
        "where the activations would take more than memory_gib, or than a quarter of the machine's memory.",
        "measurements, divides, unstated",
    )
    deterministic: bool = setting(
        False,
        "on a GPU, add in a fixed order, more slowly: the same bytes each time.",
        "measurements, divides, unstated",
    )

    def recorded(self) -> dict[str, Any]:
        """Return the settings that stand in a measurement's metadata as they were given."""
        return self.model_dump(include=set(self.fields_that("recorded"))) | {
            "block_sketches": self.block_sketches or None
        }

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
