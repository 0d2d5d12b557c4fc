"""What is checked and estimated before a run: names, settings, and the cost."""

import json
import re
import warnings

import pytest

import gradstats
from gradstats import estimators as est
from gradstats.config.experiment import Experiment
from gradstats.gradients.parameters import UnsupportedModuleError, select_parameters
from gradstats.runs.cost import _devices as devices
from gradstats.runs.cost import estimate_cost, generate
from gradstats.runs.pipeline import run_experiment
from gradstats.runs.validate import check_names

RAY = {"executor": "ray", "workers": 2}


def absent(**settings):
    """An experiment whose policy does not exist."""
    return Experiment(
        name="e", **{"policy": {"name": "./absent"}, "prompts": {"source": "embedded", "n": 2}} | settings
    )


@pytest.mark.parametrize("call", ["run", "dry run"])
@pytest.mark.parametrize(
    ("variance", "message"),
    [
        ({"estimators": ["rloo", "group_maen"]}, r"^variance\.estimators: .*'group_maen'.*group_mean"),
        ({"reference": "rlo"}, r"^variance\.reference: .*'rlo'.*rloo"),
        ({"estimators": ["length_weighted(alpa=1)"]}, r"^variance\.estimators: .*alpa"),
        (
            {"estimators": ["discounted(baseline=rlo)"]},
            r"^variance\.estimators: estimator discounted: baseline=rlo: no estimator.*did you mean 'rloo'",
        ),
    ],
)
def test_a_misspelt_estimator_fails_before_the_policy_is_looked_for(tmp_path, call, variance, message):
    experiment = absent(variance=variance)
    with pytest.raises(ValueError, match=message):
        estimate_cost(experiment) if call == "dry run" else run_experiment(experiment, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variance": {"estimators": ["rloo", "dapo"]}}, r"variance\.estimators: .*did you mean 'recipe:dapo'"),
        ({"variance": {"estimators": ["recipe:kimi_k15"]}}, r"variance\.estimators: recipe:kimi_k15 needs a value"),
        ({"variance": {"estimators": ["absent_module:f"]}}, r"variance\.estimators: .*absent_module"),
        ({"variance": {"reference": "batch_mean"}}, r"variance\.reference: batch_mean is a batch-level estimator"),
        (
            {"variance": {"group_size": [4, 16]}},
            r"variance\.group_size is \[4, 16\], and groups of 16 .* the 8 completions",
        ),
        (
            {"analyses": {"optimal_baselines": True}, "variance": {"prompts_per_batch": 2}},
            r"analyses\.optimal_baselines: prompts_per_batch is 2, .* of the 2 prompts: choose at most 1",
        ),
        ({"sampling": {"reward": "mth"}}, r"sampling\.reward: reward 'mth' is not known.*did you mean 'math'"),
        ({"behaviour_policy": {"revison": "step-1000"}}, r"behaviour_policy has no .*did you mean 'revision'"),
        (
            {"policy": {"name": "embedded"}, "reference_policy": {"revision": "step-4000"}},
            r"^reference_policy\.revision is 'step-4000', but .* has the revisions step-1000, ",
        ),
        (
            {"execution": {"ranks_per_worker": 3}, "measurement": {"engine": "vmap"}},
            r"measurement\.engine is 'vmap', which needs whole parameters, and execution\.ranks_per_worker is 3",
        ),
        (
            {"execution": {"ranks_per_worker": 2}, "measurement": {"token_probes": 8}},
            r"measurement\.token_probes is 8, which needs whole parameters",
        ),
        (
            {"execution": {"ranks_per_worker": 2}, "measurement": {"metric": "adam", "second_moments": "absent"}},
            r"measurement\.metric is 'adam', which needs whole parameters",
        ),
        ({"length_scaling": {"published": "gloeckle"}}, r"published is 'gloeckle': choose one of gloeckle2026"),
        ({"values": {"fitted": True}}, r"values\.n_folds is 5, which needs at least 6 prompts, and prompts\.n is 2"),
        ({"reference_policy": {"nmae": "x"}}, "reference_policy has no .*did you mean 'name'"),
    ],
)
def test_wrong_names_and_settings_are_refused_without_loading_anything(settings, message):
    with pytest.raises(ValueError, match=message):
        check_names(absent(**settings))


@pytest.mark.parametrize("setting", ["estimators", "reference"])
@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("recipe:rloo(aggregation=delta_l(alpha=within_prompt))", "aggregation delta_l: alpha must be a finite number"),
        ("recipe:rloo(ratio=sequence_product(truncate=5, eps_low=0.1))", "either clips .* or truncates"),
        ("recipe:rloo(mask=reject_completions(high=2, over=max))", "over='max' is for k2 and k3"),
        ("recipe:rloo(mask=reject_tokens(high=2, kind=k2, low=0.5))", "leave low out"),
    ],
)
def test_parameters_that_contradict_one_another_are_refused(setting, label, message):
    variance = {"estimators": ["rloo", label]} if setting == "estimators" else {"reference": label}
    with pytest.raises(ValueError, match=rf"^variance\.{setting}: .*{message}"):
        check_names(absent(variance=variance))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "variance.estimators is empty, so that nothing is compared: name at least one"),
        (["rloo", "grpo", "rloo"], "variance.estimators holds rloo twice: its rows will be equal"),
        (
            ["length_weighted(alpha=0.8, loo=True)", "length_weighted(loo=True, alpha=0.8)"],
            r"holds length_weighted\(loo=True, alpha=0.8\) twice, the first time as length_weighted\(alpha=0.8,",
        ),
        (["recipe:grpo", "recipe:grpo"], "holds recipe:grpo twice"),
    ],
)
def test_no_estimators_or_one_twice_are_said_before_anything_runs(labels, message):
    settings = {"policy": {"name": "embedded"}, "prompts": {"source": "embedded", "n": 4}}
    with pytest.warns(UserWarning, match=message):
        check_names(Experiment(name="x", **settings, variance={"estimators": labels}))


def test_every_estimator_can_be_tried():
    given = {
        "fspo": "width=1",
        "gdpo": "columns='accuracy=1, format=2'",
        "kimi": "tau=1",
        "kimi_k15": "tau=1",
        "length_weighted": "alpha=0.8",
    }
    labels = [f"{name}({given[name]})" if name in given else name for name in est.names()]
    recipes = [f"recipe:{name}({given[name]})" if name in given else f"recipe:{name}" for name in est.recipes.names()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_names(absent(variance={"estimators": [*labels, *recipes]}))


#: Token scores, and the six prompts that five folds of a value head need.
PROBED = {"measurement": {"token_probes": 8}, "prompts": {"source": "embedded", "n": 6}}
FITTED = {"values": {"fitted": True}, "prompts": {"source": "embedded", "n": 6}}


@pytest.mark.parametrize(
    ("label", "settings", "message"),
    [
        ("gae", {}, "gae needs values, which this run will not measure, so its row will be NaN"),
        ("remax", {}, r"remax needs greedy_rewards.*sample with --set sampling.greedy=true"),
        ("remax", {"sampling": {"greedy": True}}, None),
        ("otb", {}, r"otb weights each token.*measurement\.token_probes"),
        ("otb", {"measurement": {"token_probes": 8}}, None),
        ("causal_optimal", {"measurement": {"token_probes": 8}}, None),
        ("recipe:grpo", {}, None),
        ("recipe:dapo_top_entropy", {}, r"weights each token.*token_probes, for example to 32, or give the mask a thr"),
        ("recipe:dapo_top_entropy", {"measurement": {"token_probes": 8}}, None),
        ("recipe:dapo_top_entropy(threshold=0.5)", {}, None),
        ("discounted(gamma=0.9)", {}, r"discounted\(gamma=0.9\) weights each token"),
        ("discounted", {}, None),  # with γ = 1 it is the baseline
        ("recipe:grpo(kl=in_loss)", {}, "needs ref_logprobs"),
        ("recipe:grpo(kl=in_loss)", {"reference_policy": {"revision": "step-1000"}}, None),
        ("gae", {"values": {"monte_carlo": 2}, **PROBED}, r"values\.fitted\); the row of gae will be NaN"),
        ("vine", {"values": {"fitted": True}, **PROBED}, "only values of a fitted head.* the row of vine will be NaN"),
        ("recipe:ppo", {"values": {"fitted": True}, **PROBED}, None),
        ("vine", {"values": {"monte_carlo": 2}, **PROBED}, None),
        ("vine", {"values": {"monte_carlo": 2}}, None),
        ("recipe:ppo", FITTED, None),
        ("recipe:ppo(kl=in_reward)", {"reference_policy": {"revision": "step-1000"}, **FITTED}, r"in_reward\) weights"),
        ("recipe:ppo", {"behaviour_policy": {"revision": "step-1000"}, **FITTED}, "ppo weights each"),
    ],
)
def test_inputs_that_a_run_will_not_measure_are_warned_of(label, settings, message):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_names(absent(variance={"estimators": ["rloo", label]}, **settings))
    said = " ".join(str(entry.message) for entry in caught)
    assert re.search(message, said) if message else not said


def test_cost_estimates_follow_the_settings(policy_folder, tmp_path, monkeypatch):
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": "ab " * k, "answer": "x"}) for k in range(1, 6)))

    def cost(measurement=None, variance=None, **sampling):
        settings = {"group_size": 4, "max_new_tokens": 12, "reward": "exact"} | sampling
        return estimate_cost(
            Experiment(
                name="c",
                policy={"name": policy_folder},
                prompts={"source": str(tmp_path / "p.jsonl")},
                sampling=settings,
                measurement={"sketch_dim": 1000} | (measurement or {}),
                variance=variance or {},
            )
        )

    few, many = cost(), cost(group_size=8)
    assert (few.n_sequences, many.n_sequences) == (20, 40)
    assert many.n_tokens == 2 * few.n_tokens == 480
    assert many.disk_gib == pytest.approx(2 * few.disk_gib)
    assert few.disk_gib * 1024**3 == pytest.approx(20 * (4 * 1000 + 12 * 40))
    assert few.n_parameters == gradstats.load_policy(policy_folder).describe()["n_parameters"]
    assert min(few.sampling_seconds, few.measuring_seconds, few.memory_gib) > 0
    tokens = cost({"token_probes": 16, "token_exact": 0.25, "token_dtype": "float16"})
    scores = 20 * (12 * 16 * 2 + 3 * (1000 * 2 + 16))
    assert (tokens.disk_gib - few.disk_gib) * 1024**3 == pytest.approx(scores)
    # The ghost engine, which auto takes where it can, holds activations of a whole chunk and no gradient of a sequence.
    assert cost({"engine": "loop"}).memory_gib < few.memory_gib < cost({"engine": "vmap"}).memory_gib
    scaled = cost({"metric": "adam", "second_moments": "embedded"})
    assert (scaled.memory_gib - few.memory_gib) * 1024**3 == pytest.approx(4 * few.n_parameters)
    blocks = cost({"block_sketches": True})
    n_blocks = len(select_parameters(gradstats.load_policy(policy_folder).model).block_names)
    assert (blocks.disk_gib - few.disk_gib) * 1024**3 == pytest.approx(20 * 4 * 1000 * n_blocks)
    n_at_once = (blocks.memory_gib - few.memory_gib) * 1024**3 / (4 * 1000 * (n_blocks - 1))
    assert 1 <= round(n_at_once) == pytest.approx(n_at_once)
    # Two weightings for each clip, shared by the recipes of the same clip, where the sampler's temperature differs.
    recipes = {"estimators": ["rloo", "recipe:grpo", "recipe:dr_grpo", "recipe:dapo"]}
    assert (few.n_weightings, few.n_if_off_policy) == (0, 0)
    near, far = cost(variance=recipes), cost(variance=recipes, temperature=0.5)
    assert (near.n_weightings, near.n_if_off_policy, near.disk_gib) == (0, 4, few.disk_gib)
    assert (far.n_weightings, far.n_if_off_policy) == (4, 0)
    assert (far.disk_gib - few.disk_gib) * 1024**3 == pytest.approx(20 * 4 * (4 * 1000 + 12 * 8))
    # Of batches of 16 and of 4, the one that takes longer is timed.
    timed = []
    with monkeypatch.context() as patched:
        patched.setattr("gradstats.runs.cost.generate", lambda *given: timed.append(len(given[1])) or generate(*given))
        cost(batch_size=16)
    assert timed == [16]
    # Where ghost does not know the model, auto comes to vmap only if two gradients fit into memory_gib.
    monkeypatch.setattr("gradstats.runs.cost.supported_layers", _unsupported)
    for n_gradients, engine in ((1.5, "loop"), (2.5, "vmap")):
        room = {"memory_gib": n_gradients * 2 * 4 * few.n_parameters / 1024**3}
        assert cost(room).memory_gib == cost(room | {"engine": engine}).memory_gib
    assert cost(room).memory_gib > cost(room | {"engine": "loop"}).memory_gib


@pytest.mark.parametrize(
    ("n_gpus", "device", "execution", "sentence"),
    [
        (8, "auto", {}, "uses one of the 8 GPUs of this machine: --workers 8 gives each a worker"),
        (8, "cpu", {}, ""),
        (8, "auto", {"ranks_per_worker": 8}, "workers: 1, each with 8 CPU and 8 GPU; this machine has 8 GPU"),
        (8, "auto", {"workers": 4}, "workers: 4, each with 1 CPU and 1 GPU; this machine has 8 GPU"),
        (1, "auto", {}, ""),
        (8, "auto", RAY, "workers of ray: 2, each with 1 CPU and 1 GPU; this machine has 8 GPU"),
        (8, "cpu", RAY, "workers of ray: 2, each with 1 CPU and no GPU; this machine has 8 GPU"),
        (0, "auto", RAY | {"threads": 4}, "workers of ray: 2, each with 4 CPU and no GPU"),
        (0, "auto", RAY | {"address": "auto"}, "workers of ray: 2, with a GPU for each rank if the cluster has GPUs"),
        (0, "auto", RAY | {"address": "auto", "gpus_per_worker": 4}, "workers of ray: 2, each with 1 CPU and 4 GPU"),
    ],
)
def test_a_plan_says_which_gpus_it_uses(monkeypatch, n_gpus, device, execution, sentence):
    monkeypatch.setattr("torch.cuda.device_count", lambda: n_gpus)
    experiment = absent(execution=execution, policy={"name": "embedded", "device": device})
    assert devices(experiment) == sentence


def _unsupported(*_args):
    raise UnsupportedModuleError("an unknown module")


def test_a_cap_beyond_what_can_be_measured_is_refused(policy_folder, tmp_path, monkeypatch):
    (tmp_path / "p.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    experiment = Experiment(
        name="c",
        policy={"name": policy_folder},
        prompts={"source": str(tmp_path / "p.jsonl")},
        sampling={"group_size": 2, "max_new_tokens": 12, "reward": "exact"},
    )
    assert estimate_cost(experiment).fitting_tokens == 64  # the model's positions
    monkeypatch.setattr("gradstats.runs.cost.most_positions", lambda policy: None)
    assert estimate_cost(experiment).fitting_tokens > 10_000
    monkeypatch.setattr("gradstats.runs.cost.total_memory_gib", lambda device: 0.01)
    with pytest.raises(
        ValueError, match=r"max_new_tokens is 12, and measuring .* about \d+ tokens fit together; lower"
    ):
        estimate_cost(experiment)
