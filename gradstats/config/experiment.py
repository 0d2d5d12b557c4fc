"""Experiment files: what one holds, how it is read, its schema, and the text of a new one."""

from __future__ import annotations

import copy
import os
import re
import textwrap
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import PrivateAttr, field_validator, model_validator

from gradstats.config.options import AskedQuestions, FreeOptions, Tracker, adam_section, estimate_section
from gradstats.config.sections import (
    ExecutionSection,
    FiguresSection,
    LengthScalingSection,
    MeasurementSection,
    PolicySection,
    PromptsSection,
    SamplingSection,
    ValuesSection,
    VarianceSection,
)
from gradstats.config.trust import is_received, refuse_untrusted, written_secret
from gradstats.config.validation import Section, WrongSetting, WrongSettingsError, setting

# An experiment has some hundred values; a few lines of nested aliases can stand for billions.
_MOST_VALUES = 100_000


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<")
        for name, count in names.items():
            if count > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {name!r} is given {count} times: give it once", node.start_mark
                )
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Read a number; refuse the notations of YAML 1.1 that nobody means: 1:30 is 90 to base 60, and 010 is 8."""
        if ":" in node.value or re.fullmatch(r"[-+]?0[0-7_]+", node.value):
            base = 60 if ":" in node.value else 8
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"{node.value} would be read as a number to base {base}: write it as a decimal, or text in quotes",
                node.start_mark,
            )
        is_float = node.tag.endswith(":float")
        return self.construct_yaml_float(node) if is_float else self.construct_yaml_int(node)


for _tag in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_number)


def read_yaml(text: str) -> Any:
    """Read a YAML document of plain values.

    >>> read_yaml("{a: 1, b: [x, 2.5]}")
    {'a': 1, 'b': ['x', 2.5]}
    """
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is None:
                return None
            if _n_values(root, {}) > _MOST_VALUES:
                raise yaml.YAMLError(f"its aliases expand to more than {_MOST_VALUES:,} values: write them out")
            return loader.construct_document(root)
        finally:
            loader.dispose()
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply, or refers to itself") from error
    except ValueError as error:  # a date that does not exist, an integer of a million digits
        raise yaml.YAMLError(f"a value cannot be read: {error}") from error


def _n_values(node: yaml.Node, counted: dict[int, int]) -> int:
    """Count the values of a node with its aliases written out; one that contains itself has infinitely many."""
    if id(node) not in counted:
        counted[id(node)] = _MOST_VALUES + 1  # what an alias to a node that is still open stands for
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = list(node.value)
        counted[id(node)] = 1 + sum(_n_values(child, counted) for child in children)
    return counted[id(node)]


#: The entry of a file that varies settings, see :mod:`gradstats.config.sweep`.
VARY = "vary"
#: Bytes of a name: file systems allow 255, and partial files have longer names.
_LONGEST_NAME = 200


class Experiment(Section):
    """An experiment, with every default filled in.

    ``policy``, ``behaviour_policy``, ``reference_policy``, ``prompts``, ``sampling`` and ``measurement`` decide what is
    sampled and measured and are fixed for a run directory, except that ``prompts.n`` and ``sampling.group_size`` may
    grow. ``values`` may be added to a finished run, but not the advantages that are measured with them. ``execution``
    changes nothing of what is found. The other sections may change from one call to the next, since they only re-read
    what was measured.
    """

    title: ClassVar[str] = "an experiment"

    name: str = setting(..., "the experiment's name; that of its file by default.", "nothing")
    description: str = setting("", "what the experiment does, in a sentence or two.", "nothing")
    policy: PolicySection = setting(..., "the policy, as in {name: embedded}.", "samples")
    behaviour_policy: FreeOptions = setting(
        dict,
        "settings in which the policy that samples differs, as in {revision: step-3500}; none by default.",
        "samples",
    )
    reference_policy: FreeOptions = setting(
        dict,
        "settings in which the reference of a KL term differs from the policy, as in {name: models/sft}; "
        "none is measured by default.",
        "measurements",
    )
    prompts: PromptsSection = setting(..., "the problems, as in {source: embedded, n: 32}.", "samples")
    sampling: SamplingSection = setting(SamplingSection(), "how completions are drawn and scored.", "samples")
    measurement: MeasurementSection = setting(
        MeasurementSection(), "which gradients are measured, and how.", "measurements"
    )
    values: ValuesSection = setting(
        ValuesSection(), "which state values are made, for gae and vine; none by default.", "values"
    )
    length_scaling: LengthScalingSection = setting(LengthScalingSection(), "the fit of α.", "answers")
    variance: VarianceSection = setting(VarianceSection(), "which estimators are compared, and how.", "answers")
    analyses: AskedQuestions = setting(
        dict,
        "questions that the run answers besides those of every run, or with other settings, and false for "
        "those that it leaves out, as in {allocation: false, curve: {estimator: length_weighted, values: "
        '"alpha=0:1:5"}, my_module:question: {}}; `gradstats ask` lists them.',
        "answers",
    )
    figures: FiguresSection = setting(FiguresSection(), "the figures' appearance.", "nothing")
    tracking: Tracker = setting(
        "none",
        "where settings, progress and results are logged while the run goes on: trackio, wandb, or none.",
        "nothing",
    )

    execution: ExecutionSection = setting(
        ExecutionSection(),
        "where the work is done; a run records it in its manifest, and may be resumed with another.",
        "nothing",
    )

    _folder: Path | None = PrivateAttr(default=None)

    @property
    def folder(self) -> Path | None:
        """The folder of the file, in which user modules are searched for; None where there is none."""
        return self._folder

    def __eq__(self, other: object) -> bool:
        """Return whether all settings are equal, whichever files they were read from."""
        return isinstance(other, Experiment) and self.model_dump() == other.model_dump()

    @field_validator("name")
    @classmethod
    def _is_a_file_name(cls, name: str) -> str:
        """Refuse a name that cannot be that of the folder of results."""
        if (
            not name.strip()
            or name.startswith(".")
            or any(letter in "/\\:" or not letter.isprintable() for letter in name)
            or len(name.encode()) > _LONGEST_NAME
        ):
            raise ValueError(
                ": it must be a name for a folder: not empty, without / \\ : and without a dot in front, of at most "
                f"{_LONGEST_NAME} bytes"
            )
        return name

    # `info` is pydantic's ValidationInfo, a protocol that cannot be checked when the function is called.
    @field_validator("behaviour_policy", "reference_policy")
    @classmethod
    def _changes_a_policy(cls, changes: FreeOptions, info: Any) -> FreeOptions:
        if "policy" in info.data:
            PolicySection(**(info.data["policy"].model_dump() | changes))
        return changes

    @field_validator("sampling")
    @classmethod
    def _holds_no_secret(cls, sampling: SamplingSection) -> SamplingSection:
        """Refuse a credential, without repeating it: a run writes its settings to files."""
        if secret := written_secret(sampling.model_dump()):
            name, _, fault = secret.partition(" ")
            raise WrongSettingsError([WrongSetting((name,), fault)], "sampling")
        return sampling

    @model_validator(mode="after")
    def _sections_agree(self) -> Experiment:
        if wrong := [*self._contradictions()]:
            raise WrongSettingsError(wrong, self.title)
        return self

    def _contradictions(self) -> Iterator[WrongSetting]:
        """Yield the settings that those of another section do not allow."""
        measurement, n_ranks = self.measurement, self.execution.ranks_per_worker
        needs_whole_parameters = {
            "engine": measurement.engine in ("vmap", "loop"),
            "token_probes": measurement.token_probes > 0,
            "metric": adam_section(measurement.metric) is not None,
        }
        for name in (one for one, needs in needs_whole_parameters.items() if needs and n_ranks > 1):
            fault = (
                f"is {getattr(measurement, name)!r}, which needs whole parameters, and execution.ranks_per_worker is "
                f"{n_ranks}, whose ranks hold parts of them: measure with engine ghost, without token_probes and in "
                "the Euclidean metric, or with one rank"
            )
            yield WrongSetting(("measurement", name), fault)
        if measurement.n_prompts is not None:
            yield from self._against_part(measurement.n_prompts)
        drawn, asked = self.sampling.group_size, self.variance.group_size
        for size in asked if isinstance(asked, list) else [asked or drawn]:
            if size > drawn:
                fault = (
                    f"is {asked}, and groups of {size} cannot be formed from the {drawn} completions of each prompt "
                    f"(sampling.group_size): sample more, or choose at most {drawn}"
                )
                yield WrongSetting(("variance", "group_size"), fault)
        n_prompts, n_folds = self.prompts.n, self.values.n_folds
        if self.values.fitted and n_prompts is not None and n_prompts <= n_folds:
            fault = (
                f"is {n_folds}, which needs at least {n_folds + 1} prompts, and prompts.n is {n_prompts}: sample more "
                "prompts, or choose fewer folds"
            )
            yield WrongSetting(("values", "n_folds"), fault)
        estimate = estimate_section(measurement.second_moments)
        if estimate and n_prompts is not None and int(n_prompts * estimate.share) < estimate.prompts_per_batch:
            fault = (
                f"is {measurement.second_moments!r}, and a share of {estimate.share:g} of {n_prompts} prompts "
                f"does not fill a batch of {estimate.prompts_per_batch}: sample more prompts, raise share, or lower "
                "prompts_per_batch"
            )
            yield WrongSetting(("measurement", "second_moments"), fault)

    def _against_part(self, n_measured: int) -> Iterator[WrongSetting]:
        """Yield what does not go together with measuring some of the prompts."""
        n_prompts, name = self.prompts.n, ("measurement", "n_prompts")
        if n_prompts is not None and n_measured > n_prompts:
            fault = (
                f"is {n_measured}, and prompts.n is {n_prompts}: sample more prompts, or leave it out to measure all"
            )
            yield WrongSetting(name, fault)
        needs_all = {
            "measurement.token_probes": self.measurement.token_probes > 0,
            "measurement.token_exact": self.measurement.token_exact > 0,
            "measurement.second_moments": estimate_section(self.measurement.second_moments) is not None,
            "values.fitted": self.values.fitted,
            "values.monte_carlo": self.values.monte_carlo > 0,
        }
        for setting_of_all in (one for one, needs in needs_all.items() if needs):
            fault = (
                f"is {n_measured}, and {setting_of_all} takes all prompts: measure all of them, or leave "
                f"{setting_of_all} out"
            )
            yield WrongSetting(name, fault)

    @property
    def is_off_policy(self) -> bool:
        """Whether ratios of the scored policy and the sampler are meant to vary, or to count."""
        drawn_at = self.sampling.temperature or self.policy.temperature
        changed = bool(self.behaviour_policy) or drawn_at != self.policy.temperature
        return changed or self.variance.target == "importance"

    @property
    def sampling_policy(self) -> PolicySection:
        """The policy that draws the completions."""
        return PolicySection(**(self.policy.model_dump() | self.behaviour_policy))

    @property
    def kl_reference(self) -> PolicySection | None:
        """The reference policy of a KL term; None where none is measured."""
        return PolicySection(**(self.policy.model_dump() | self.reference_policy)) if self.reference_policy else None

    def to_yaml(self) -> str:
        """Return the resolved experiment as YAML, without where it is executed."""
        return yaml.safe_dump(self.model_dump(exclude={"execution"}), sort_keys=False, allow_unicode=True)

    def settled_settings(self, *decided: str) -> dict[str, object]:
        """Return the settings that decide what is sampled and measured, or one of both, by flat names.

        >>> Experiment(
        ...     name="e", policy={"name": "embedded"}, prompts={"source": "embedded"}
        ... ).settled_settings("samples")["sampling.group_size"]
        8
        """
        sections = self.model_dump(include=set(self.fields_that(*(decided or ("samples", "measurements")))))
        return {f"{section}.{key}": value for section, entries in sections.items() for key, value in entries.items()}

    @classmethod
    def settings_that(cls, *effects: str) -> tuple[str, ...]:
        """Return the settings with one of several effects, see :func:`gradstats.config.validation.setting`, by name.

        >>> Experiment.settings_that("grows")
        ('prompts.n', 'sampling.group_size', 'measurement.n_prompts')
        """
        sections = {name: field.annotation for name, field in cls.model_fields.items()}
        return tuple(
            f"{name}.{one}"
            for name, section in sections.items()
            if isinstance(section, type) and issubclass(section, Section)
            for one in section.fields_that(*effects)
        )


def load_experiment(
    name_or_path: str | os.PathLike[str], overrides: Sequence[str] = (), *, trust: bool = False
) -> Experiment:
    """Read an experiment file to run it, or one that comes with the project by its name."""
    return load_experiment_file(find_experiment(os.fspath(name_or_path)), overrides, trust=trust)


def load_experiment_file(
    path: Path, overrides: Sequence[str] = (), *, trust: bool = False, ignored: Sequence[str] = ()
) -> Experiment:
    """Read the experiment file at a path to run it, or a part of it."""
    data = settings_in(path)
    if not trust:
        refuse_untrusted(path, with_settings(data, overrides), with_settings({}, overrides), ignored=ignored)
    return in_its_folder(experiment_of(path, data, overrides), path, trust)


def in_its_folder(experiment: Experiment, path: Path, trust: bool) -> Experiment:
    """Let user modules be searched for beside an experiment's file, unless someone else may have put them there."""
    if trust or not is_received(path):
        experiment._folder = path.resolve().parent
    return experiment


def read_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment file without running it; commands that run steps use :func:`load_experiment_file`."""
    return experiment_of(path, settings_in(path), overrides)


def experiment_of(path: Path, data: dict[str, Any], overrides: Sequence[str] = ()) -> Experiment:
    """Return the experiment of a file's settings, without the trust that running it needs."""
    settings: dict[str, Any] = {"name": path.stem}
    settings |= {str(key): value for key, value in with_settings(data, overrides).items()}
    if VARY in settings:
        raise ValueError(
            f"the experiment file {path} varies settings ({VARY}): run it with `gradstats run {path}`, or gs.run_sweep"
        )
    try:
        return Experiment(**settings)
    except WrongSettingsError as error:
        raise ValueError(f"the experiment file {path} has wrong settings: {error}") from error


def settings_in(path: Path) -> dict[str, Any]:
    """Return the settings of a file; ``sampling.top_p: 0.9`` stands for the same within ``sampling``."""
    try:
        data = read_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"the experiment file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ValueError(f"the experiment file {path} does not contain settings")
    for name in [key for key in data if isinstance(key, str) and "." in key]:
        value = data.pop(name)
        if _is_given(data, name):
            raise ValueError(
                f"the experiment file {path} gives {name} twice: give it once, by itself or in its section"
            )
        set_setting(data, name, value)
    return data


def _is_given(data: Mapping[str, Any], name: str) -> bool:
    """Return whether a setting, or what would be a section of it, has a value already."""
    place: Any = data
    for part in name.split("."):
        if not isinstance(place, Mapping):
            return place is not None
        if part not in place:
            return False
        place = place[part]
    return True


def experiment_schema() -> dict[str, Any]:
    """Return the JSON schema of an experiment file, with which editors complete and check it."""
    schema = Experiment.model_json_schema()
    schema["required"] = [name for name in schema["required"] if name != "name"]  # else the name of the file
    schema["properties"][VARY] = {
        "type": ["object", "array"],
        "description": "settings and the values that they take, for a sweep of runs, as in "
        "{sampling.temperature: [0.8, 1.0]}, every combination of which is run; or a list of the cells.",
    }
    for name, field in Experiment.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            for setting in field.annotation.model_fields:
                at = f"#/$defs/{field.annotation.__name__}/properties/{setting}"
                schema["properties"][f"{name}.{setting}"] = {"$ref": at}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def with_settings(data: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Change some nested settings, as in ``["prompts.n=60", "sampling.reward={math: 1}"]``; values are YAML."""
    data = copy.deepcopy(data)
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word!r} is not a setting: write it as name=value, for example prompts.n=60")
        try:
            set_setting(data, name, read_yaml(value))
        except yaml.YAMLError as error:
            fault = getattr(error, "problem", "") if isinstance(error, yaml.constructor.ConstructorError) else ""
            fault = fault or "which is not YAML: quote it"
            raise ValueError(f"the value of {name} is {value!r}, {fault}") from error
    return data


def set_setting(data: dict[str, Any], name: str, value: object) -> None:
    """Set a nested setting in place, named as ``"sampling.group_size"``; sections that are missing are made."""
    *sections, last = name.split(".")
    place = data
    for section in sections:
        if not isinstance(place.get(section), dict):
            place[section] = {}
        place = place[section]
    place[last] = value


def shipped_experiments(*, sweeps: bool = False) -> dict[str, Path]:
    """Name → file of the experiments that come with the project, or of the sweeps."""
    package = Path(__file__).parents[1]
    folders = (package / "data" / "experiments", package.parent / "experiments")
    chosen = [folder / "sweeps" if sweeps else folder for folder in folders]
    return {path.stem: path for folder in chosen for path in sorted(folder.glob("*.yaml"))}


def find_experiment(name: str, *, sweep: bool = False) -> Path:
    """Return the file of an experiment or a sweep: the one at that path, or one of that name with the project."""
    path = Path(name)
    if path.is_file():
        return path
    kind, shipped = "sweep" if sweep else "experiment", shipped_experiments(sweeps=sweep)
    if name in shipped:
        return shipped[name]
    near = get_close_matches(name, [*shipped, *shipped_experiments(sweeps=not sweep)], 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise FileNotFoundError(
        f"there is no {kind} file {name}, and none of that name comes with the project: {hint}`gradstats list` and "
        "`gradstats list sweeps` show those that do"
    )


#: The schema with which editors complete and check a file; it lies beside it.
SCHEMA_FILE = "experiment.schema.json"
_BEGINNING = """\
# yaml-language-server: $schema={schema}
# `gradstats run {file} --dry-run` checks this file and says what it takes; `gradstats run {file}` runs it.
"""
_REST = """
# All other settings with their defaults: remove the "# " in front of one to change it.
"""
# Of the few words on a setting; the columns that its value fills before them.
_WORDS, _VALUE = 80, 44


def experiment_text(file: str, settings: Mapping[str, Any]) -> str:
    """Write an experiment file that chooses some settings and lists all others, as comments, with their defaults."""
    Experiment(**{"name": "new", **settings})
    chosen, others = [_BEGINNING.format(schema=SCHEMA_FILE, file=file)], [_REST]
    for name, field in Experiment.model_fields.items():
        value, section = settings.get(name), field.annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            if value is not None:
                chosen.append(_line(name, value, Experiment, name))
            elif name != "name":  # that of the file
                others.append(f"# {_line(name, field.get_default(call_default_factory=True), Experiment, name)}")
            continue
        of_section = value or {}
        chosen += [f"{name}:\n"] if of_section else []
        for key, one in section.model_fields.items():
            if key in of_section:
                chosen.append(f"  {_line(key, of_section[key], section, key)}")
            else:
                default = one.get_default(call_default_factory=True)
                others.append(f"# {_line(f'{name}.{key}', default, section, key)}")
    return "".join([*chosen, *others])


def _line(written: str, value: object, section: type[Section], name: str) -> str:
    """Write a setting on one line, with the first words of its description, or its choices where these name not all."""
    words = re.split(r"[;.] |\.$", section.model_fields[name].description or "")[0]
    words = textwrap.shorten(words, _WORDS, placeholder=" …")
    choices = section.allowed_values(name).partition("one of ")[2].removesuffix(" (or None)")
    if not all(one in words for one in choices.split(", ")):
        words = f"{words.partition(': ')[0]}: {choices}"
    return f"{f'{written}: {as_yaml(value)}':<{_VALUE}}  # {words}\n"


def as_yaml(value: object) -> str:
    """Write a value on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000)
    return text.removesuffix("...\n").strip()
