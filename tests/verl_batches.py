"""A batch as verl passes it to an advantage estimator."""

import numpy as np
import torch

PROMPTS = np.array(["p", "q", "p", "q", "p", "q", "q"], dtype=object)


def verl_batch(seed: int = 0):
    """Rewards on the last token that counts, masks with holes, prompts whose completions are interleaved."""
    rng = np.random.default_rng(seed)
    mask = np.zeros((7, 9))
    rewards = np.zeros((7, 9), dtype=np.float32)
    for row, length in enumerate(rng.integers(2, 10, size=7)):
        mask[row, :length] = 1
        rewards[row, length - 1] = rng.integers(0, 3) / 2
    mask[1, 0] = mask[4, 0] = 0
    return torch.tensor(rewards), torch.tensor(mask)
