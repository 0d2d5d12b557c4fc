"""The experiment file: what a run samples, measures, compares and draws."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

DEFAULT_ESTIMATORS = (
    "reinforce",
    "constant(b=optimal)",
    "group_mean",
    "rloo",
    "grpo",
    "dr_grpo",
    "token_mean(loo=True)",
    "length_weighted(alpha=0.8, loo=True)",
    "norm_weighted(loo=True)",
)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class PolicySection(_Section):
    """Arguments of :func:`gradstats.load_policy`."""

    name: str
    dtype: str = "float32"
    temperature: float = 1.0
    device: str = "auto"
    revision: str | None = None
    adapter: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False


class PromptsSection(_Section):
    """Arguments of :func:`gradstats.load_prompts`; ``settings`` are the source's own."""

    source: str
    n: int | None = None
    seed: int = 0
    settings: dict[str, Any] = Field(default_factory=dict)


class SamplingSection(_Section):
    """Arguments of :func:`gradstats.sample`."""

    group_size: int = 8
    max_new_tokens: int = 1500
    temperature: float | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    reward: str | list[str] | dict[str, float] | None = None
    seed: int = 0
    batch_size: int = 64
    system_prompt: str | None = None
    template_options: dict[str, Any] = Field(default_factory=dict)
    sampler: str = "transformers"
    base_url: str | None = None
    sampler_options: dict[str, Any] = Field(default_factory=dict)
    greedy: bool = False


class MeasurementSection(_Section):
    """Arguments of :func:`gradstats.measure`, and the type in which token scores are saved."""

    engine: str = "auto"
    params: str | None = None
    blocks: str | dict[str, str] = "layer"
    sketch_dim: int | None = 16384
    sketch_seed: int = 0
    token_probes: int = 0
    token_exact: int | float = 0
    token_seed: int = 0
    token_dtype: Literal["float32", "float16"] = "float32"
    token_budget: int | None = None
    memory_gib: float | None = None


class LengthScalingSection(_Section):
    """Options of the length-scaling fit; ``published`` names data sets drawn over the figure."""

    confidence_level: float = 0.95
    published: str | None = None


class VarianceSection(_Section):
    """Arguments of :func:`gradstats.compare`; an estimator is a label such as ``length_weighted(alpha=0.8)``."""

    estimators: list[str] = Field(default_factory=lambda: list(DEFAULT_ESTIMATORS))
    group_size: int | None = None
    reference: str = "rloo"
    confidence_level: float = 0.95
    seed: int = 0


class FiguresSection(_Section):
    """Look of the figures."""

    venue: str = "icml"
    column: Literal["half", "full"] | None = None
    theme: Literal["light", "dark"] = "light"
    formats: list[str] = Field(default_factory=lambda: ["pdf", "png"])


class Experiment(_Section):
    """An experiment, with every default filled in.

    ``policy``, ``prompts``, ``sampling`` and ``measurement`` decide what is sampled and measured and are fixed for a
    run directory, except that ``prompts.n`` and ``sampling.group_size`` may grow; the other sections may change from
    one call to the next, since they only re-read what was measured.
    """

    name: str
    description: str = ""
    policy: PolicySection
    prompts: PromptsSection
    sampling: SamplingSection = SamplingSection()
    measurement: MeasurementSection = MeasurementSection()
    length_scaling: LengthScalingSection = LengthScalingSection()
    variance: VarianceSection = VarianceSection()
    figures: FiguresSection = FiguresSection()

    def to_yaml(self) -> str:
        """The resolved experiment as YAML."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)

    def settled_settings(self) -> dict[str, Any]:
        """The settings that decide what is sampled and measured, flat: ``"sampling.group_size"`` → value."""
        sections = self.model_dump(include={"policy", "prompts", "sampling", "measurement"})
        return {f"{section}.{key}": value for section, entries in sections.items() for key, value in entries.items()}


def load_experiment(name_or_path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment file, or one that comes with the project by its name.

    Args:
        name_or_path: the file, or the name.
        overrides: settings to change, as ``"prompts.n=60"``, see :func:`with_settings`.

    Raises:
        FileNotFoundError: when there is neither such a file nor such an experiment.
        ValueError: when the file is not YAML, or a setting is unknown, missing or of the wrong type (all are named).
    """
    path = _find(os.fspath(name_or_path))
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"the experiment file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ValueError(f"the experiment file {path} holds no settings")
    data = with_settings(data, overrides)
    try:
        return Experiment.model_validate({"name": path.stem} | data)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ValueError(f"the experiment file {path} has wrong settings: {wrong}") from error


def with_settings(data: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Nested settings with some changed: ``["prompts.n=60", "sampling.reward={math: 1}"]``; values are YAML.

    Raises:
        ValueError: for a word that is no ``name=value``, or a value that is not YAML.
    """
    data = copy.deepcopy(data)
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word!r} is no setting: write it as name=value, for example prompts.n=60")
        *sections, last = name.split(".")
        place = data
        for section in sections:
            if not isinstance(place.get(section), dict):
                place[section] = {}
            place = place[section]
        try:
            place[last] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"the value of {name} is {value!r}, which is not YAML: quote it") from error
    return data


def shipped_experiments() -> dict[str, Path]:
    """Name → file of the experiments that come with the project."""
    package = Path(__file__).parents[1]
    folders = (package / "data" / "experiments", package.parent / "experiments")
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def _find(name: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    shipped = shipped_experiments()
    if name in shipped:
        return shipped[name]
    raise FileNotFoundError(
        f"there is no experiment file {name}, and no experiment of that name comes with the project "
        f"(there are {', '.join(shipped)})"
    )
