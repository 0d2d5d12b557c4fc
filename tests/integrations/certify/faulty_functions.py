"""Advantage and loss functions with known faults, and sound ones beside them."""

import torch


def sound_loss(logprobs, advantages, mask):
    return -(advantages[:, None] * logprobs * mask).sum() / len(mask)


def weights_from_sums(logprobs, old_logprobs, advantages, mask):
    ratio = torch.exp(((logprobs - old_logprobs) * mask).sum(1))
    return -(ratio * advantages).mean()


def weights_from_means(logprobs, old_logprobs, advantages, mask):
    ratio = torch.exp(((logprobs - old_logprobs) * mask).sum(1) / mask.sum(1).clamp(min=1))
    return -(ratio * advantages * mask.sum(1)).mean()


def k3_in_loss(logprobs, ref_logprobs, advantages, mask):
    k1 = logprobs - ref_logprobs
    return (((torch.exp(-k1) + k1 - 1) * 0.1 - advantages[:, None] * logprobs) * mask).sum() / len(mask)


def k2_in_loss(logprobs, ref_logprobs, advantages, mask):
    return ((0.05 * (logprobs - ref_logprobs) ** 2 - advantages[:, None] * logprobs) * mask).sum() / len(mask)


def dapo_with_truncated_rows(logprobs, advantages, mask, tokens):
    return -(advantages[:, None] * logprobs * mask).sum() / tokens.sum()


def dapo_of_each_step(logprobs, advantages, mask):
    return -(advantages[:, None] * logprobs * mask).sum() / mask.sum().clamp(min=1)


def loo_with_batch_std(rewards, groups):
    others = (groups[:, None] == groups).double().fill_diagonal_(0).to(rewards)
    return (rewards - others @ rewards / others.sum(1).clamp(min=1)) / (rewards.std() + 1e-6)


def loo(rewards, groups):
    others = (groups[:, None] == groups).double().fill_diagonal_(0).to(rewards)
    return rewards - others @ rewards / others.sum(1).clamp(min=1)
