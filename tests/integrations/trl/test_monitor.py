"""The variance monitor: what it logs is what measuring offline gives, and training does not notice it."""

import contextlib
from pathlib import Path

import numpy as np
import pandas as pd
import peft
import pytest
import torch
from small_trainers import (
    GROUP_SIZE,
    assert_same_bits,
    logged,
    odd_rewards,
    small_model,
    small_trainer,
    trained,
    weights_of,
)

import gradstats as gs
from gradstats import estimators as families
from gradstats.gradients.session import MeasuringSession
from gradstats.integrations.training_record import plain_label
from gradstats.integrations.trl import VarianceMonitor, use_estimator
from gradstats.integrations.trl.contract import prompts_of_step
from gradstats.integrations.trl.monitor import live_policy, step_name
from gradstats.policy.policy import Policy
from gradstats.report.saved_results import read_results
from gradstats.stats.intervals import fieller_ratio
from gradstats.stats.jackknife import mean_statistic
from gradstats.stats.variance.pools import PooledCompletions

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("quick_collections")]


def test_the_model_is_in_evaluation_and_its_modes_are_restored(tmp_path):
    trainer = small_trainer("GRPO", tmp_path, temperature=0.7)
    trainer.model.train()
    trainer.model.model.layers[0].eval()  # frozen by the user
    modes, state = [module.training for module in trainer.model.modules()], torch.get_rng_state()
    with live_policy(trainer) as policy:
        torch.rand(3)
        assert not any(module.training for module in policy.model.modules())
        assert (policy.temperature, policy.revision) == (0.7, "step-000000")
    assert [module.training for module in trainer.model.modules()] == modes
    assert torch.equal(state, torch.get_rng_state())


def test_autocast_is_stepped_around_and_put_back_after_an_error(tmp_path):
    trainer = small_trainer("GRPO", tmp_path, bf16=True, gradient_checkpointing=False)
    model = trainer.accelerator.prepare_model(trainer.model)
    wrapped = vars(model)["forward"]
    ids = torch.tensor([[2, 3, 4]])
    exact = vars(model)["_original_forward"](ids).logits
    assert not torch.equal(model(ids).logits, exact)
    with contextlib.suppress(KeyError), live_policy(trainer) as policy:
        assert torch.equal(policy.model(ids).logits, exact)
        raise KeyError
    assert vars(model)["forward"] is wrapped


LABELS = ["rloo", "group_mean", "length_weighted(alpha=0.8, loo=True)", "norm_weighted(loo=True)"]


def watched(kind, folder, *, monitor=None, **settings):
    trainer = small_trainer(kind, folder, **settings)
    if monitor is None:
        monitor = VarianceMonitor(LABELS, every=1, out=folder / "watch", verbose=True)
    return trainer, monitor.attach(trainer)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The weights of the model with dropout that was trained without a monitor."""
    folder = tmp_path_factory.mktemp("plain")
    return trained(small_trainer("GRPO", folder, model=small_model(0.2), gradient_checkpointing=False))


class TestWeights:
    """Training with and without the monitor ends with the same bits."""

    @pytest.mark.parametrize(
        ("kind", "settings"),
        [
            ("GRPO", {"gradient_accumulation_steps": 2, "num_iterations": 2}),
            pytest.param("RLOO", {"gradient_checkpointing": True, "temperature": 0.7}, marks=pytest.mark.slow),
            ("GRPO", {"gradient_checkpointing": False, "bf16": True, "loss_type": "grpo"}),
        ],
        ids=["accumulating", "checkpointing", "autocast"],
    )
    def test_are_the_same_bits(self, tmp_path, kind, settings):
        with_dropout = {"gradient_checkpointing": False} | settings
        plain = trained(small_trainer(kind, tmp_path / "plain", model=small_model(0.2), **with_dropout))
        trainer, monitor = watched(kind, tmp_path, model=small_model(0.2), **with_dropout)
        assert_same_bits(plain, trained(trainer))
        assert (monitor.n_measured >= 1, monitor.n_skipped) == (True, 0)

    def test_are_the_same_bits_with_an_adapter(self, tmp_path):
        config = peft.LoraConfig(r=2, lora_dropout=0.3, target_modules=["q_proj", "v_proj"])
        settings = {"peft_config": config, "gradient_checkpointing": False}
        torch.manual_seed(1)
        plain = trained(small_trainer("GRPO", tmp_path / "plain", **settings))
        torch.manual_seed(1)
        trainer, monitor = watched("GRPO", tmp_path, **settings)
        assert_same_bits(plain, trained(trainer))
        assert monitor.n_measured == 2
        assert logged(trainer)[0]["trace_cov"] > 0


class TestLoggedValues:
    """What is logged is what ``measure`` and ``compare`` give on the same completions and weights."""

    @pytest.mark.parametrize("settings", [{"temperature": 0.7}, {"bf16": True}], ids=["tempered", "autocast"])
    def test_equal_those_of_an_offline_study(self, tmp_path, settings):
        settings = {"gradient_checkpointing": False, "max_steps": 1} | settings
        before = small_model()
        trainer, monitor = watched("GRPO", tmp_path, model=small_model(), **settings)
        trainer.train()
        rollouts = gs.read_rollouts(monitor.folder / "step-000000" / "rollouts")
        policy = Policy(before.eval(), temperature=trainer.temperature)
        measured = gs.measure(policy, rollouts, progress=False)
        table = gs.compare(measured, LABELS).to_frame().set_index("estimator")
        row = logged(trainer)[0]
        logged_of = ["ratio", "ratio_low", "matched_ratio", "matched_ratio_high", "kept_share"]
        for (label, name), expected in table.loc[LABELS, logged_of].stack().items():
            if np.isfinite(expected):
                assert row[f"{plain_label(label)}/{name}"] == pytest.approx(expected, rel=1e-4), (label, name)
        assert row["trace_cov"] == pytest.approx(table.loc["rloo", "trace_cov"], rel=1e-4)
        fit = gs.alpha_report(measured)
        assert row["alpha"] == pytest.approx(fit.fit.alpha, rel=1e-3)
        assert row["alpha_low"] == pytest.approx(fit.confidence_interval()[0], rel=1e-3)
        assert row["mean_length"] == rollouts.lengths.mean()
        assert row["skipped"] == row["left_out"] == 0
        assert row["seconds"] > 0

    def test_say_what_the_batch_of_the_trainer_reaches(self, tmp_path, monkeypatch):
        """From the comparison of each step alone: nothing is measured or compared a second time."""

        def rewards(completion_ids, **_):
            found = odd_rewards(completion_ids)
            return [1.0] * GROUP_SIZE + found[GROUP_SIZE:]  # the first group has no signal

        calls = {"measure": 0, "rows": 0}

        def counted(owner, name):
            original = getattr(owner, name)

            def call(*arguments, **options):
                calls[name] += 1
                return original(*arguments, **options)

            monkeypatch.setattr(owner, name, call)

        counted(MeasuringSession, "measure")
        counted(PooledCompletions, "rows")
        settings = {"max_steps": 5, "gradient_accumulation_steps": 2, "gradient_checkpointing": False}
        trainer, monitor = watched("RLOO", tmp_path, rewards=rewards, **settings)
        trainer.train()
        assert calls == {"measure": monitor.n_measured, "rows": monitor.n_measured}
        rows = logged(trainer)
        assert [row["over_steps"] for row in rows] == [1, 1, 1, 1, 5]
        steps = [gs.read_rollouts(monitor.folder / step_name(step) / "rollouts") for step in range(5)]
        for row, rollouts in zip(rows, steps, strict=True):
            first = rollouts.frame["prompt_id"] == rollouts.frame["prompt_id"].iloc[0]
            assert row["silent_tokens"] == pytest.approx(rollouts.lengths[first].sum() / rollouts.lengths.sum())
            assert row["batch_prompts"] == 6
            assert 0.0 <= row["alignment_low"] <= row["alignment_high"] <= 1.0
        tables = [pd.read_csv(monitor.folder / step_name(step) / "variance.csv").iloc[0] for step in range(5)]
        assert {table["estimator"] for table in tables} == {"rloo"}
        noise, signal = (
            mean_statistic(np.array([table[name] for table in tables])) for name in ("trace_cov", "signal_sq")
        )
        low, high = fieller_ratio(noise, signal).within(0.95, 0.0, np.inf)
        assert rows[4]["critical_batch_low"] == pytest.approx(low, rel=1e-6)
        assert ("critical_batch" in rows[4]) == np.isfinite(high)  # without a resolved signal there is a bound alone
        assert 0.0 <= rows[4]["best_saving_low"] <= rows[4]["best_saving"] <= rows[4]["best_saving_high"] < 1.0

    @pytest.mark.parametrize(
        ("kind", "settings", "used", "label"),
        [
            ("GRPO", {}, None, "grpo"),
            ("RLOO", {}, "norm_weighted(loo=True)", "norm_weighted(loo=True)"),
            ("GRPO", {"loss_type": "sapo"}, "rloo", "recipe:custom(advantage=rloo, aggregation=sequence_mean)"),
            ("GRPO", {}, "otb", "rloo"),  # single tokens are not compared: the reference
        ],
    )
    def test_are_of_the_estimator_that_the_trainer_uses(self, tmp_path, kind, settings, used, label):
        """It is compared whether or not it is listed, also where it is chosen after the monitor is attached."""
        trainer, monitor = watched(kind, tmp_path, max_steps=1, **settings)
        if used is not None:
            use_estimator(trainer, used)
        trainer.train()
        assert prompts_of_step(trainer) == 3
        table = pd.read_csv(monitor.folder / step_name(0) / "variance.csv").set_index("estimator")
        assert set(table.index) == {*LABELS, label}
        row = logged(trainer)[0]
        assert row["batch_prompts"] == 3
        assert row["critical_batch_low"] == pytest.approx(table.loc[label, "noise_to_signal_low"], abs=1e-12)
        assert f"{plain_label(label)}/kept_share" in row

    def test_of_a_callback_are_few_and_one_sentence(self, tmp_path, capsys):
        """Also where the monitor was attached before, and where the trainer trains a second time."""
        rows = {}
        for name, attached in (("attached", True), ("found", False)):
            monitor = VarianceMonitor(LABELS, every=2, out=tmp_path / name)
            settings = {"max_steps": 3, "gradient_checkpointing": False, "callbacks": [monitor]}
            trainer = small_trainer("GRPO", tmp_path, **settings)
            if attached:
                monitor.attach(trainer)
            trainer.train()
            said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
            assert [line.partition(": with 3 prompts × 4 completions, ")[0] for line in said] == ["step 0", "step 2"]
            assert all("0% of the tokens are in groups whose rewards are all equal" in line for line in said)
            rows[name] = logged(trainer)
            monitor.on_train_begin(trainer.args, trainer.state, trainer.control)
        assert rows["found"] == rows["attached"]
        # Alignment and ends are not always resolved.
        keys = {key for row in rows["found"] for key in row}
        assert 10 <= len(keys) <= 12
        # Of neither the reference nor the trainer's own.
        assert {key.partition("/ratio")[0] for key in keys if "/" in key} == {
            "group_mean", "length_weighted-alpha-0.8-loo",
        }  # fmt: skip
        assert "alpha" in rows["found"][0]
        assert set(rows["found"][1]) == {"silent_tokens", "head_noise_proxy"}  # not measured

    def test_of_every_loss_hold_the_noise_of_the_output_layer(self, tmp_path):
        """From the trainer's own forward pass: of the first loss as the same model scores what was drawn."""
        settings = {"max_steps": 2, "gradient_checkpointing": False, "temperature": 0.7}
        trainer, monitor = watched("GRPO", tmp_path, model=small_model(), **settings)
        trainer.train()
        rollouts = gs.read_rollouts(monitor.folder / "step-000000" / "rollouts")
        measured = gs.measure(Policy(small_model().eval(), temperature=0.7), rollouts, progress=False)
        rewards = rollouts.rewards.reshape(-1, GROUP_SIZE)
        scaled = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)
        surprise = np.array([-logprobs.sum() for logprobs in measured.logprobs])
        rows = logged(trainer)
        assert rows[0]["head_noise_proxy"] == pytest.approx(np.mean(scaled.ravel() ** 2 * surprise), rel=1e-4)
        assert rows[1]["head_noise_proxy"] > 0
        # Why the norm is what it is, of every measured step, by those before.
        steps = [read_results(monitor.folder / step_name(step)).answers["spike"] for step in range(2)]
        norms = [one.further["spike_batches"].frame["squared_norm"].item() for one in steps]
        assert all(norm > 0 for norm in norms)
        assert steps[0].about["asked"]["estimator"] == "grpo"
        assert steps[1].about["asked"]["others"] == pytest.approx(norms[:1])

    def test_of_a_callback_without_its_trainer(self):
        with pytest.raises(ValueError, match=r"found from its callbacks: call VarianceMonitor.*attach\(trainer"):
            VarianceMonitor().on_train_begin(None, object(), None)

    def test_appear_so_often(self, tmp_path):
        monitor = VarianceMonitor(["rloo"], every=2, n_prompts=2)
        trainer, _ = watched("GRPO", tmp_path, monitor=monitor, max_steps=5, gradient_checkpointing=False)
        trainer.train()
        assert ["rloo/ratio" in row for row in logged(trainer)] == [True, False] * 2 + [True]
        assert all(row["silent_tokens"] == 0.0 for row in logged(trainer))
        assert len(gs.read_rollouts(monitor.folder / step_name(2) / "rollouts")) == 2 * GROUP_SIZE
        assert sorted(path.name for path in (tmp_path / "gradstats").glob("step-*")) == list(map(step_name, (0, 2, 4)))


#: Estimators that end the process, raise, or set what training depends on; of which the last gives an advantage.
HOSTILE = """
import random, sys
import numpy as np
import torch

random.seed(0), np.random.seed(0), torch.manual_seed(0)  # when it is imported

def ends(batch):
    seeds(batch)
    sys.exit(3)

def raises(batch):
    raise RecursionError("too deep")

def seeds(batch):
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(torch.get_num_threads() + 1)
    return batch.rewards
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("user") / "hostile.py"
    path.write_text(HOSTILE)
    return path


class TestTheModelIsAsItWas:
    @pytest.mark.parametrize(("name", "skipped"), [("ends", 2), ("raises", 2), ("seeds", 0)])
    def test_whatever_an_estimator_of_the_user_does(self, tmp_path, hostile, plain, name, skipped):
        monitor, threads = VarianceMonitor(["rloo", f"{hostile}:{name}"], every=1), torch.get_num_threads()
        settings = {"model": small_model(0.2), "gradient_checkpointing": False}
        trainer, _ = watched("GRPO", tmp_path, monitor=monitor, **settings)
        assert_same_bits(plain, trained(trainer))
        assert (monitor.n_measured, monitor.n_skipped) == (2 - skipped, skipped)
        assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, threads)
        assert torch.is_grad_enabled()

    def test_whatever_an_estimator_in_use_does(self, tmp_path, hostile, plain):
        """Its advantages train, and nothing else of it: one that ends the process leaves the trainer's own."""

        def using(label):
            trainer = small_trainer("GRPO", tmp_path / "run", model=small_model(0.2), gradient_checkpointing=False)
            use_estimator(trainer, label)
            return trained(trainer)

        assert_same_bits(using("reinforce"), using(f"{hostile}:seeds"))
        assert_same_bits(plain, using(f"{hostile}:ends"))

    def test_after_a_measurement_that_fails(self, tmp_path, monkeypatch):
        trainer, monitor = watched("GRPO", tmp_path, max_steps=1, bf16=True, gradient_checkpointing=False)

        def fail(*_):
            raise RuntimeError("no luck\nat all")

        monkeypatch.setattr("gradstats.gradients.session.MeasuringSession.measure", fail)
        with pytest.warns(RuntimeWarning, match=r"step 0 were not measured \(RuntimeError: no luck\); training contin"):
            trainer.train()
        assert (monitor.n_measured, monitor.n_skipped) == (0, 1)
        row = logged(trainer)[0]
        assert row.pop("head_noise_proxy") > 0
        assert row == {"silent_groups": 0.0, "silent_tokens": 0.0, "skipped": 1.0, "left_out": 0.0}
        plain = small_trainer("GRPO", tmp_path / "plain", max_steps=1, bf16=True, gradient_checkpointing=False)
        assert_same_bits(trained(plain), weights_of(trainer))


class TestBadInput:
    """It is left out, or its batch is skipped, with one sentence."""

    def rewards(self, missing):
        def some(completion_ids, **_):
            values = odd_rewards(completion_ids)
            return [None if place in missing else value for place, value in enumerate(values)]

        return some

    @pytest.mark.parametrize(("missing", "left_out"), [({1}, 1), ({0, 1, 2}, 4)], ids=["one", "all of a group but one"])
    def test_rewards_that_are_missing(self, tmp_path, missing, left_out):
        trainer, monitor = watched("GRPO", tmp_path, rewards=self.rewards(missing), max_steps=1)
        trainer.train()
        assert logged(trainer)[0]["n_sequences"] == 12 - left_out
        assert (monitor.n_left_out, monitor.n_measured) == (left_out, 1)

    def test_fewer_than_two_groups(self, tmp_path):
        trainer, monitor = watched("GRPO", tmp_path, rewards=self.rewards(set(range(8))), max_steps=2)
        with pytest.warns(RuntimeWarning, match="1 of 1 groups hold two usable completions, and 2 must") as caught:
            trainer.train()
        assert sum("not measured" in str(one.message) for one in caught) == 1
        assert monitor.n_skipped == 2

    @pytest.mark.parametrize("settings", [{}, {"steps_per_generation": 2}], ids=["plain", "with old log-probabilities"])
    def test_completions_that_were_cut_off_and_masked(self, tmp_path, settings):
        """The monitor describes what the trainer learns from: their rewards vote, and their gradients are 0."""
        given = {"mask_truncated_completions": True, "max_completion_length": 6, "max_steps": 1} | settings
        trainer, monitor = watched("GRPO", tmp_path, gradient_checkpointing=False, **given)
        trainer.train()
        rows = {key: value for row in trainer.state.log_history for key, value in row.items()}
        found = logged(trainer)[0]
        assert found["left_out"] == monitor.n_left_out == monitor.n_skipped == 0
        assert found["truncated_share"] == pytest.approx(rows["completions/clipped_ratio"])
        assert found["truncated_share"] > 0
        assert found["mean_reward"] == pytest.approx(rows["reward"], rel=1e-5)
        assert found["mean_length"] == pytest.approx(rows["completions/mean_terminated_length"])
        rollouts = gs.read_rollouts(monitor.folder / "step-000000" / "rollouts")
        assert found["n_sequences"] == len(rollouts)
        assert (rollouts.lengths > 0).tolist() == (~rollouts.truncated).tolist()

        measured = gs.measure(Policy(small_model().eval()), rollouts, progress=False)
        assert not measured.sq_norms[rollouts.truncated].any()
        groups = rollouts.prompt_id.astype(int)
        # The gradient of the first group by the trainer's rewards, those of masked completions in their mean.
        inside = np.flatnonzero(groups == groups[0])
        expected = np.zeros(measured.sketches.shape[1])
        for row in inside:
            others = [rollouts.rewards[other] for other in inside if other != row]
            expected += (rollouts.rewards[row] - np.mean(others)) * measured.sketches[row] / len(inside)
        weights = families.get("rloo").weights(families.Batch.from_measurement(measured))
        np.testing.assert_allclose(weights[inside] @ measured.sketches[inside], expected, rtol=1e-5, atol=1e-7)
        table = gs.compare(measured, LABELS).to_frame().set_index("estimator")
        assert found["norm_weighted-loo/ratio"] == pytest.approx(
            table.loc["norm_weighted(loo=True)", "ratio"], rel=1e-3
        )

    def test_a_second_monitor(self, tmp_path):
        trainer, monitor = watched("GRPO", tmp_path)
        with pytest.raises(ValueError, match="has a variance monitor already"):
            VarianceMonitor(["rloo"]).attach(trainer)
        with pytest.raises(ValueError, match="watches another trainer already"):
            monitor.attach(small_trainer("GRPO", tmp_path))

    def test_settings(self):
        for wrong, said in (
            ({"every": 0}, "every is 0"),
            ({"n_prompts": 1}, "n_prompts is 1"),
            ({"estimators": ["rlo"]}, "rlo"),
        ):
            with pytest.raises((KeyError, ValueError), match=said):
                VarianceMonitor(**wrong)

    def test_a_folder_that_holds_something_else(self, tmp_path):
        (tmp_path / "watch" / "step-000000").mkdir(parents=True)
        (tmp_path / "watch" / "step-000000" / "mine.txt").write_text("mine")
        trainer, monitor = watched("GRPO", tmp_path, max_steps=1)
        with pytest.warns(RuntimeWarning, match="is not a run directory that gradstats wrote"):
            trainer.train()
        assert monitor.n_skipped == 1
        assert (tmp_path / "watch" / "step-000000" / "mine.txt").read_text() == "mine"
