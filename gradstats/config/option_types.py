"""Types of options that sections, functions and commands share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt

Count = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
ConfidenceLevel = Annotated[float, Gt(0), Lt(1)]

#: Type of the weights and gradients.
WeightType = Literal["float32", "float64", "bfloat16", "float16"]
#: Fits of the length exponent, and intervals for it.
FitMethod = Literal["ols", "theil_sen", "gamma", "ppml", "gls", "within_prompt", "between_prompt"]
IntervalMethod = Literal["t", "hc3", "cluster", "bootstrap", "rank"]
Target = Literal["auto", "on_policy", "importance"]
#: Where shards are made.
ExecutorName = Literal["local", "ray"]
#: Libraries that log a run.
Tracker = Literal["none", "trackio", "wandb"]
#: Label of an estimator, or name of a run → what figures call it.
DisplayNames = dict[str, str]
#: Options of something that is chosen by name elsewhere: a data source, a sampler, a chat template.
FreeOptions = dict[str, Any]
#: One reward, several as "name=weight", several as name → weight, or the problem set's own.
RewardNames = str | list[str] | dict[str, float] | None
#: How squared norms are split: the name of a split, or regular expression → block.
BlockNames = str | dict[str, str]
#: One group size, several, or all completions of each prompt.
GroupSizes = Count | list[Count] | None
