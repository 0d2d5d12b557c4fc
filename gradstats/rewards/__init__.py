"""Rewards: scoring a completion against its problem's answer."""

from gradstats.rewards.registry import REWARDS, Reward, get_reward

__all__ = ["REWARDS", "Reward", "get_reward"]
