"""Two DDP processes whose groups straddle them, against one process."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TRAIN = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch
from small_trainers import logged, small_trainer
from gradstats.integrations.trl import VarianceMonitor, use_estimator

folder, mode, processes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
settings = {"scale_rewards": "none"} if mode == "own" else {}
trainer = small_trainer(
    "GRPO", folder / mode, num_generations=8, per_device_train_batch_size=24 // processes,
    gradient_checkpointing=False, ddp_backend="gloo", mask_truncated_completions=True, **settings,
)
if mode != "own":
    use_estimator(trainer, "group_mean")
    labels = ["rloo", "reinforce", "norm_weighted(loo=True)"]
    monitor = VarianceMonitor(labels, every=1, keep_measurements=True, verbose=True).attach(trainer)
trainer.train()
if trainer.accelerator.is_main_process:
    torch.save({name: tensor.detach() for name, tensor in trainer.model.named_parameters()}, folder / f"{mode}.pt")
    if mode != "own":
        assert (monitor.n_measured, monitor.n_skipped, monitor.n_left_out) == (2, 0, 0)
        (folder / "logged.json").write_text(json.dumps(logged(trainer)))
"""


def start(folder: Path, mode: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = folder / "train.py"
    script.write_text(TRAIN)
    both = []
    for rank in ("0", "1"):
        environment = os.environ | {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        words = [sys.executable, str(script), str(folder), mode, "2"]
        both.append(
            subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        for process in both:
            out, _ = process.communicate(timeout=550)
            assert process.returncode == 0, out[-3000:]
    finally:
        for process in both:
            process.kill()


def test_two_processes(tmp_path):
    import torch

    import gradstats as gs
    from gradstats.integrations.training_record import plain_label

    for mode in ("own", "watched"):
        start(tmp_path, mode)
    own, watched = (torch.load(tmp_path / f"{mode}.pt") for mode in ("own", "watched"))
    for name, tensor in own.items():
        np.testing.assert_array_equal(tensor.numpy(), watched[name].numpy(), err_msg=name)
    record = tmp_path / "watched" / "gradstats"
    measured = gs.read_measurement(record / "step-000001" / "measurement")
    assert len(measured) == 24
    assert (measured.lengths == 0).tolist() == measured.rollouts.truncated.tolist()
    assert measured.rollouts.truncated.any()
    assert sorted(set(measured.rollouts.prompt_id)) == ["0", "1", "2"]
    row = json.loads((tmp_path / "logged.json").read_text())[1]
    table = gs.compare(measured, ["rloo", "reinforce", "norm_weighted(loo=True)"]).to_frame().set_index("estimator")
    for label in table.index:
        assert row[f"{plain_label(label)}/ratio"] == pytest.approx(table.loc[label, "ratio"])
    # Each completion is scored with its own reward: the rewards are a function of the token ids.
    for ids, reward in zip(measured.rollouts.frame["completion_tokens"], measured.rollouts.rewards, strict=True):
        assert reward == pytest.approx(0.1 * sum(ids) / len(ids) + 0.037 * len(ids), rel=1e-6)
