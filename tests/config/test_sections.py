"""The sections of an experiment: values, labels with parameters, and what is refused in one sentence."""

import inspect
import re
from pathlib import Path
from typing import Annotated, get_args

import numpy as np
import pytest
from annotated_types import Gt
from pydantic import Field, ValidationError

import gradstats
from gradstats import estimators
from gradstats.config.experiment import Experiment
from gradstats.config.options import (
    AdamSection,
    EstimateSection,
    adam_section,
    estimate_section,
    read_display_names,
    read_label,
    written,
)
from gradstats.config.sections import (
    DEFAULT_ESTIMATORS,
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
from gradstats.config.validation import DECIDED, Section, WrongSettingsError, setting, takes
from gradstats.gradients.engines.registry import ENGINES
from gradstats.plots.save import FORMATS
from gradstats.plots.style import INK, VENUES
from gradstats.policy.model import DTYPES
from gradstats.runs.growth import settings_digest
from gradstats.sampling.plan import SAMPLERS
from gradstats.system.files import digest


@pytest.mark.parametrize(("token_exact", "given"), [(0, 0), (1, 1), (7, 7), (0.25, 0.25), (3.0, 3.0)])
def test_tokens_measured_exactly_are_a_number_or_a_share(token_exact, given):
    assert repr(MeasurementSection(token_exact=token_exact).token_exact) == repr(given)


def test_the_token_budget_of_a_run_of_version_0_1_is_the_default():
    assert MeasurementSection(token_budget=None) == MeasurementSection()
    assert MeasurementSection(token_budget=99) != MeasurementSection()


SECTIONS = [
    PolicySection,
    PromptsSection,
    SamplingSection,
    MeasurementSection,
    LengthScalingSection,
    VarianceSection,
    FiguresSection,
]
REQUIRED = {PolicySection: {"name": "embedded"}, PromptsSection: {"source": "embedded"}}


@pytest.mark.parametrize(
    "section", [*SECTIONS, ValuesSection, ExecutionSection, AdamSection, EstimateSection, Experiment]
)
def test_every_field_says_what_it_is_and_declares_what_it_decides(section):
    assert section.fields_that(*DECIDED) == tuple(section.model_fields)
    for name, field in section.model_fields.items():
        assert section not in SECTIONS or (field.description or "").endswith("."), name


def test_a_field_without_a_declared_effect_is_refused():
    class Drawing(SamplingSection):
        typical_p: float = Field(default=1.0, description="mass of typical tokens.")

    with pytest.raises(TypeError, match=r"^Drawing\.typical_p does not declare what it decides: write it as setting"):
        Drawing.fields_that("truncates")


@pytest.mark.parametrize("effect", ["truncates, samples", "samples, trims", ""])
def test_an_effect_begins_with_what_is_decided(effect):
    with pytest.raises(ValueError, match=rf"^the effect is '{effect}': give samples, .*then any of often set"):
        setting(1.0, "mass of typical tokens.", effect)


#: What runs, measurements and verdicts on samples have relied on since they were first written.
# fmt: off
RELIED_ON = {
    "grows": ("prompts.n", "sampling.group_size"),
    "regraded": ("sampling.reward",),
    "divides": ("measurement.token_budget", "measurement.memory_gib", "measurement.recompute"),
    "unstated": ("measurement.recompute",),
    "truncates": ("sampling.top_p", "sampling.top_k", "sampling.min_p"),
    "reshapes": ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    "of the question": (
        "policy.name", "policy.revision", "policy.temperature", "prompts.source", "prompts.settings",
        "sampling.group_size", "sampling.max_new_tokens", "sampling.reward", "sampling.system_prompt",
        "sampling.sampler", "measurement.params", "variance.group_size", "variance.reference",
    ),
    "recorded": ("params", "sketch_dim", "sketch_seed", "token_probes", "token_exact", "token_seed"),
    "shared": ("metric", "sketch_dim", "sketch_seed", "sketch_version", "token_probes", "token_exact", "token_seed"),
}
# fmt: on


@pytest.mark.parametrize("effect", RELIED_ON)
def test_settings_that_runs_made_before_rely_on_have_kept_their_effects(effect):
    found = Experiment.settings_that(effect)
    assert {*RELIED_ON[effect]} <= {*found, *(name.rpartition(".")[2] for name in found)}


def test_shards_know_their_run_by_the_settings_that_stay_as_they_are():
    experiment = Experiment(name="e", policy={"name": "embedded"}, prompts={"source": "embedded", "n": 2})
    fixed = {name.partition(".")[0] for name in experiment.settled_settings()}
    assert fixed == {"policy", "prompts", "sampling", "measurement"}  # and of other policies what differs
    changing = {"prompts.n", "sampling.group_size", "sampling.reward", "measurement.recompute"}
    changing |= {"measurement.deterministic", "measurement.n_prompts"}
    settled = {name: value for name, value in experiment.settled_settings().items() if name not in changing}
    assert settings_digest(experiment) == digest(sorted(settled.items()))


def test_fixed_sets_of_names_are_those_of_the_registries():
    def names(section, field):
        return get_args(section.model_fields[field].annotation)

    assert names(MeasurementSection, "engine") == ("auto", *ENGINES)
    assert names(SamplingSection, "sampler") == tuple(SAMPLERS)
    assert set(names(PolicySection, "dtype")) == set(DTYPES)
    assert names(FiguresSection, "venue") == tuple(VENUES)
    assert names(FiguresSection, "theme") == tuple(INK)
    assert get_args(names(FiguresSection, "formats")[0]) == FORMATS


@pytest.mark.parametrize("section", SECTIONS)
def test_defaults_pass_their_own_validation(section):
    defaults = section(**REQUIRED.get(section, {}))
    assert section(**defaults.model_dump()) == defaults
    with pytest.raises(WrongSettingsError, match="has no setting 'nothing'"):
        section(**REQUIRED.get(section, {}), nothing=1)


def test_the_estimators_compared_by_default_are_labels():
    assert VarianceSection().estimators == list(DEFAULT_ESTIMATORS)
    assert [estimators.get(label).label for label in DEFAULT_ESTIMATORS if label != "constant(b=optimal)"] == [
        label for label in DEFAULT_ESTIMATORS if label != "constant(b=optimal)"
    ]
    assert estimators.get("constant(b=optimal)") == estimators.constant()


@pytest.mark.parametrize(
    ("label", "name", "parameters"),
    [
        ("rloo", "rloo", {}),
        ("rloo()", "rloo", {}),
        ("kimi(tau=0.5)", "kimi", {"tau": 0.5}),
        ("kimi (tau = -1e-3, loo=True)", "kimi", {"tau": -1e-3, "loo": True}),
        ("constant(b=optimal)", "constant", {"b": "optimal"}),
        ("constant(b='optimal')", "constant", {"b": "optimal"}),
        ("token_clip(dual_clip=None)", "token_clip", {"dual_clip": None}),
        ("recipe:grpo(kl=in_loss(beta=0.1), loo=True)", "recipe:grpo", {"kl": "in_loss(beta=0.1)", "loo": True}),
        ("module:function(a=[1, 2], b='x(y)')", "module:function", {"a": [1, 2], "b": "x(y)"}),
    ],
)
def test_a_label_is_read_as_name_and_parameters(label, name, parameters):
    assert read_label(label) == (name, parameters)


@pytest.mark.parametrize(
    "label",
    ["f(0.5)", "f(t=", "f(t=1, t=2)", "f(t=1 + x)", "f(t=1)x", "f(t=1)(l=True)", "f(**tau)", "f(t={[]: 1})"],
)
def test_what_cannot_be_read_is_refused(label):
    with pytest.raises(ValueError, match=r"^cannot read .*: write it as name\(parameter=value, …\)$") as caught:
        read_label(label)
    assert repr(label) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.3"),
        (True, "True"),
        ("optimal", "optimal"),
        ("in_loss(beta=0.1)", "in_loss(beta=0.1)"),
        ("mine:f", "'mine:f'"),
        ("1", "'1'"),
        ("None", "'None'"),
        ("a, b=2", "'a, b=2'"),
    ],
)
def test_a_written_value_is_read_back(value, text):
    assert written(value) == text
    assert read_label(f"f(x={text})")[1]["x"] == pytest.approx(value) if isinstance(value, float) else value


def test_display_names_end_their_label_outside_its_brackets():
    words = ["length_weighted(alpha=0.8, loo=True)=ours, $\\alpha = 0.8$", "rloo = RLOO"]
    assert [*read_display_names(words).items()] == [(words[0][:36], words[0][37:]), ("rloo", "RLOO")]


@pytest.mark.parametrize("word", ["rloo", "=RLOO", "rloo=", "otb(loo=True)"])
def test_display_names_without_a_label_or_a_name_are_refused(word):
    with pytest.raises(ValueError, match="write it as label=name"):
        read_display_names([word])


def test_labels_state_options():
    adam = adam_section("adam(eps=1e-6, step=10)")
    estimate = estimate_section("estimate(share=0.5, estimator=dr_grpo)")
    assert (adam.eps, adam.step, adam.power, adam.beta2) == (1e-6, 10, 0.5, None)
    assert estimate.arguments() == {"estimator": "dr_grpo", "prompts_per_batch": 16}
    assert estimate.share == 0.5
    assert estimate_section("moments.safetensors") is None


def test_the_euclidean_metric_has_a_name_as_well():
    assert MeasurementSection(metric="euclidean").metric == "euclidean"
    with pytest.raises(ValueError, match=r"second_moments is 'a\.pt', which only a metric uses"):
        MeasurementSection(metric="euclidean", second_moments="a.pt")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "sgd"}, r"metric is 'sgd': the metric 'sgd' is unknown: choose euclidean, or adam"),
        ({"metric": "adam(epsilon=1)"}, r"metric is 'adam\(epsilon=1\)': the metric has no setting 'epsilon'"),
        ({"metric": "adam(eps=-1)"}, r"eps is -1: it must be a number of at least 0"),
        ({"metric": "adam(step=0)"}, r"step is 0: it must be an integer of at least 1"),
        ({"metric": "adam"}, r"second_moments is None, and metric is 'adam': give a file of second moments, or"),
        ({"second_moments": "a.pt"}, r"second_moments is 'a\.pt', which only a metric uses: give metric adam"),
        ({"metric": "adam", "second_moments": "estimate(share=1)"}, r"share is 1: it must be a number in \(0, 1\)"),
        ({"metric": "adam(step=5)", "second_moments": "estimate"}, "step of the metric is 5, .*: leave step out"),
        ({"metric": "adam", "second_moments": "estimate(batch=1)"}, r"has no setting 'batch'"),
    ],
)
def test_wrong_options_are_one_sentence(settings, message):
    with pytest.raises(ValueError, match=message):
        MeasurementSection(**settings)


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        (SamplingSection, {"group_siz": 3}, "sampling has no setting 'group_siz': did you mean 'group_size'?"),
        (LengthScalingSection, {"q": 3}, "length_scaling has no setting 'q': it has confidence_level, published"),
        (SamplingSection, {"group_size": 0}, "group_size is 0: it must be an integer of at least 1 (completions of"),
        (SamplingSection, {"top_p": 1.5}, "top_p is 1.5: it must be a number in (0, 1] (nucleus mass; 1 keeps every"),
        (SamplingSection, {"sampler": "vlm"}, "sampler is 'vlm': choose one of transformers, continuous, vllm, openai"),
        (
            SamplingSection,
            {"reward": {"a": "x"}},
            "reward is {'a': 'x'}: it must be a string, a list with each entry a string, a mapping with each value a "
            "number, or None (name of the reward",
        ),
        (MeasurementSection, {"sketch_dim": 0}, "sketch_dim is 0: it must be an integer in [1, 16777216], or None"),
        (
            MeasurementSection,
            {"sketch_dim": None, "block_sketches": True},
            "block_sketches is True, and sketch_dim is None: give a dimension of the sketches",
        ),
        (MeasurementSection, {"token_exact": 1.0}, "token_exact is 1.0, neither a share below 1 nor a whole number"),
        (MeasurementSection, {"token_exact": 2.5}, "token_exact is 2.5: give a number of tokens, or a share"),
        (
            VarianceSection,
            {"group_size": [2, 0]},
            "group_size is [2, 0]: it must be an integer of at least 1, a list with each entry an integer of at "
            "least 1, or None (completions of a group, one size or several; all of a prompt by default)",
        ),
        (VarianceSection, {"confidence_level": 1.0}, "confidence_level is 1.0: it must be a number in (0, 1) (level"),
        (FiguresSection, {"column": "x"}, "column is 'x': choose one of half, full (or None)"),
        (FiguresSection, {"formats": ["x"]}, "formats is ['x']: it must be a list with each entry one of pdf, svg, "),
    ],
)
def test_a_wrong_setting_is_one_sentence(section, settings, message):
    with pytest.raises(WrongSettingsError) as caught:
        section(**settings)
    assert str(caught.value).startswith(message)
    assert "Single tokens" not in str(caught.value)  # only the first sentence of a description
    assert not isinstance(caught.value, ValidationError)
    assert "\n" not in str(caught.value)


def test_an_experiment_names_every_wrong_setting_with_its_section():
    with pytest.raises(WrongSettingsError) as caught:
        Experiment(name="e", policy={"nam": 3}, sampling={"group_size": 0, "top_k": -1}, measurement=3, varianc={})
    sentences = [setting.sentence("an experiment") for setting in caught.value.wrong]
    assert str(caught.value) == "; ".join(sentences)
    named = "policy.name policy prompts sampling.top_k sampling.group_size measurement an"
    assert [sentence.split(" ", 1)[0] for sentence in sentences] == named.split()
    assert sentences[0] == 'policy.name is missing: give "embedded", a local folder, a .gguf file or a hub id'
    assert sentences[1] == "policy has no setting 'nam': did you mean 'name'?"
    assert sentences[5].startswith("measurement is 3: it must be a mapping of engine, params, blocks")
    assert sentences[6] == "an experiment has no setting 'varianc': did you mean 'variance'?"


def test_numbers_of_numpy_are_numbers():
    section = SamplingSection(group_size=np.int64(3), temperature=np.float32(0.5))
    assert (section.group_size, section.temperature) == (3, 0.5)
    assert type(section.group_size) is int


def test_arguments_are_those_of_the_function():
    arguments = VarianceSection(group_size=[2, 4], seed=5).arguments(reference="reinforce")
    assert (arguments["rng"], arguments["reference"], arguments["group_size"]) == (5, "reinforce", [2, 4])
    assert not {"seed", "confidence_level"} & arguments.keys()


class Drawing(Section):
    """A section of a few options."""

    title = "drawing"

    top_p: Annotated[float, Gt(0)] = setting(1.0, "nucleus mass; 1 keeps every token.", "samples, truncates")
    seed: int = setting(0, "seed of the sampler.", "samples")
    options: dict[str, str] = setting(dict, "options of the engine.", "samples")
    dtype: str = setting("float32", "type in which it is saved.", "nothing, no argument")


@takes(Drawing)
def drawn(policy, *, rng: int = 0, progress: bool = True, **settings):
    """Draw.

    Args:
        policy: the policy.
        rng: a seed, so that the same call
            draws the same.
        progress: show a bar.
        **settings: the others.

    Returns:
        The settings.
    """
    return Drawing.of_arguments(settings, seed=rng)


def test_a_function_takes_the_settings_of_a_section_in_the_place_of_its_own():
    assert str(inspect.signature(drawn)) == (
        "(policy, *, top_p: float = 1.0, rng: int = 0, options: dict[str, str] = None, progress: bool = True)"
    )
    assert str(inspect.getdoc(drawn)).partition("Args:\n")[2] == (
        "    policy: the policy.\n"
        "    top_p: nucleus mass; 1 keeps every token.\n"
        "    rng: a seed, so that the same call\n        draws the same.\n"
        "    options: options of the engine.\n"
        "    progress: show a bar.\n\n"
        "Returns:\n    The settings."
    )
    assert drawn(None, top_p=0.5, rng=3, options=None) == Drawing(top_p=0.5, seed=3)
    with pytest.raises(WrongSettingsError, match=r"top_p is 0: it must be a number above 0 \(nucleus mass"):
        drawn(None, top_p=0)


@pytest.mark.parametrize(
    ("name", "hint"), [("topp", "did you mean 'top_p'"), ("dtype", "it takes top_p"), ("seed", "it takes top_p, rng")]
)
def test_what_is_not_an_argument_is_refused_as_python_does(name, hint):
    with pytest.raises(TypeError, match=rf"^drawing takes no argument '{name}': {hint}"):
        drawn(None, **{name: 1})


def test_messages_name_settings_that_there_are_and_no_python_alone():
    package = Path(gradstats.__file__).parent
    text = {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    named = {(path.name, name) for path in text for name in re.findall(r"how_to_set\(['\"]([\w.]+)['\"]", text[path])}
    assert len(named) > 10
    assert {name for _, name in named} <= {*Experiment.settings_that(*DECIDED)}
    alone = re.compile(
        rf"(?:pass|measure with|sample with) (?:{'|'.join(MeasurementSection.model_fields)}|allow_pickle|"
        r"trust_remote_code|greedy)="
    )
    assert {path.name: found for path in text if (found := alone.findall(text[path]))} == {}
