"""Small models run on one thread, and torch's setting is restored."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_model

from gradstats.policy.policy import Policy, suitable_threads


def test_small_models_take_one_thread_and_give_the_setting_back(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with suitable_threads(Policy(tiny_model("qwen2"))):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with pytest.raises(KeyboardInterrupt), suitable_threads(Policy(tiny_model("qwen2"))):
            raise KeyboardInterrupt
        assert torch.get_num_threads() == 2
        monkeypatch.setattr("gradstats.policy.policy._SMALL", 10)
        with suitable_threads(Policy(tiny_model("qwen2"))):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
