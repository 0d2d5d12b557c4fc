"""Small models and rollouts that many tests share."""

import gc
import importlib
import os
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2Tokenizer,
)

from gradstats import data
from gradstats.rollouts.table import Rollouts

# No test cuts the power: flushing each of the many small files to the disk is a good part of the time of a small run.
os.fsync = lambda _descriptor: None
# Figures are drawn into files; children of the tests draw so, too.
os.environ["MPLBACKEND"] = "Agg"

#: Seconds of processor time that a test may take which is not marked slow, and with the processes that it starts, each
#: of which imports everything again.
LONGEST, LONGEST_WITH_CHILDREN = 5.0, 20.0


def processor_seconds() -> tuple[float, float]:
    """The processor time of this process, and that with its children that have ended."""
    times = os.times()
    return times.user + times.system, sum(times[:4])


def slowness() -> float:
    """How many seconds of processor time are worth one of a quick, quiet machine, where the loop takes 0.06 s."""
    before, small = processor_seconds()[0], torch.ones(32, 32, requires_grad=True)
    for _ in range(4000):
        (small @ small).sum().backward()
    loop = (processor_seconds()[0] - before) / 0.06
    return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), loop, 1.0), 4.0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    _, start = processor_seconds()
    yield
    item.user_properties.append(("set-up", processor_seconds()[1] - start))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    before = processor_seconds()
    yield
    own, seconds = (now - then for now, then in zip(processor_seconds(), before, strict=True))
    item.user_properties.append(("test", seconds))
    # Checks of shapes and types take half as long again.
    checked = item.config.getoption("jaxtyping_packages", None)
    longer = own > LONGEST or seconds > LONGEST_WITH_CHILDREN
    if not longer or checked or item.get_closest_marker("slow") is not None:
        return
    if own > LONGEST * (slower := slowness()) or seconds > LONGEST_WITH_CHILDREN * slower:
        pytest.fail(f"{seconds:.1f} s of processor time: ask less of the test, or mark it slow", pytrace=False)


def pytest_terminal_summary(terminalreporter, config):
    """State what a run with several workers took, and its slowest tests."""
    if config.getoption("dist", "no") == "no":
        return
    called = [one for kind in ("passed", "failed") for one in terminalreporter.getreports(kind) if one.when == "call"]
    taken = {one.nodeid: dict(one.user_properties) for one in called}
    minutes = processor_seconds()[1] / 60
    terminalreporter.section(f"{minutes:.1f} processor minutes; the slowest tests, in seconds of them")
    for name in sorted(taken, key=lambda name: -sum(taken[name].values()))[:10]:
        parts = ", ".join(f"{part} {seconds:.1f}" for part, seconds in taken[name].items())
        terminalreporter.line(f"{sum(taken[name].values()):5.1f} {name} ({parts})")


VOCABULARY = 41


#: Of a model of two layers, as the configurations of most architectures call it.
SIZES = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def tiny_config(architecture: str, tied: bool = False) -> PreTrainedConfig:
    """A two-layer configuration of an architecture."""
    common = {"vocab_size": VOCABULARY, "tie_word_embeddings": tied, "bos_token_id": 0, "eos_token_id": 1}
    if architecture == "gpt2":
        return GPT2Config(
            n_embd=24, n_layer=2, n_head=2, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common
        )
    kind = {"qwen2": Qwen2Config, "llama": LlamaConfig}[architecture]
    return kind(**SIZES, **common)


def tiny_model(architecture: str, tied: bool = False, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    """A random two-layer model in evaluation mode; biases and norms are random too."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(tiny_config(architecture, tied)).to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def ragged_rollouts(n: int = 5, seed: int = 0, masked: bool = False, longest: int = 20) -> Rollouts:
    """Random token ids with ragged prompts and completions, one completion of a single token among them."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(2, VOCABULARY, size=rng.integers(1, 8)).tolist() for _ in range(n)]
    lengths = [1, *rng.integers(2, longest, size=n - 1).tolist()]
    completions = [rng.integers(2, VOCABULARY, size=length).tolist() for length in lengths]
    masks = None
    if masked:
        masks = [[bool(position % 3 != 1) for position in range(length)] for length in lengths]
    return Rollouts.from_sequences(
        prompts, completions, rng.normal(size=n), [f"p{row // 2}" for row in range(n)], completion_mask=masks
    )


@pytest.fixture(scope="module")
def script(request):
    """The script of experiments/ after which a file of tests is named."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "experiments"))
        return importlib.import_module(request.path.stem.removeprefix("test_"))


@pytest.fixture
def rollouts() -> Rollouts:
    """Five ragged rollouts."""
    return ragged_rollouts()


def tiny_tokenizer(chat_template: bool = True) -> Qwen2Tokenizer:
    """One token per character of a small alphabet, with a chat template that marks the turns."""
    # Qwen2's own class: loading a folder whose config says Qwen2 rebuilds the tokenizer as this one. Ġ is its space.
    alphabet = ["<pad>", "<eos>", "<user>", "<assistant>", *"abcdefghijklmnopqrstuvwxyz0123456789Ġ"]
    tokenizer = Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate(alphabet)},
        merges=[],
        unk_token="<pad>",
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=["<user>", "<assistant>"],
    )
    if chat_template:
        tokenizer.chat_template = (
            "{% for message in messages %}<user>{{ message['content'] }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}"
        )
    return tokenizer


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory) -> str:
    """A saved random Qwen2 model with its tokenizer, and generation defaults that must not be followed."""
    folder = tmp_path_factory.mktemp("policy")
    model = tiny_model("qwen2", tied=True, dtype=torch.float32)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.6, top_p=0.95, top_k=3, repetition_penalty=1.1, eos_token_id=1, pad_token_id=0
    )
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def quick_collections():
    """Leave what is imported out of searches for garbage, of which each training of transformers makes several."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def unchecked(monkeypatch):
    """Without checks of annotations: for tests that give a wrong type and read the package's own message."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def ctrl_c_counts():
    """In background jobs a shell lets processes ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def one_rank():
    """A process group of this process alone."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.device_mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.fixture
def points(tmp_path):
    """The published points as a CSV file."""
    path = tmp_path / "points.csv"
    data.load("gloeckle2026").to_csv(path, index=False)
    return path


@contextmanager
def screen(browser, width, height=800, mobile=False):
    """A browser whose screen has a size."""
    device = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    yield
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium that logs its console and its network."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "disable-dev-shm-usage",
        f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()
