"""Lengths and squared norms that follow a power law, with noise of prompts and of completions."""

import numpy as np


def noisy_power_law(n_prompts, per_prompt, alpha=0.8, prompt_sd=0.6, seed=0, heteroscedastic=False):
    """Lengths, squared norms and prompts; the noise may grow away from the middle length."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_prompts), per_prompt)
    centre = rng.normal(4.5, 0.6, n_prompts)
    lengths = np.ceil(np.exp(centre[groups] + rng.normal(0, 0.4, len(groups))))
    noise = rng.normal(0, prompt_sd, n_prompts)[groups] + rng.normal(0, 0.7, len(groups))
    if heteroscedastic:
        noise = noise * (0.4 + 0.6 * np.abs(np.log(lengths) - 4.5))
    return lengths, np.exp(2.0 + 2.0 * alpha * np.log(lengths) + noise), groups


def curved_power_law(curvature=0.0, n_prompts=40, per_prompt=3, seed=0):
    """The same with a quadratic term of the logarithm."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_prompts), per_prompt)
    lengths = np.ceil(np.exp(rng.normal(4.5, 0.7, len(groups))))
    x = np.log(lengths)
    noise = rng.normal(0, 0.3, n_prompts)[groups] + rng.normal(0, 0.4, len(groups))
    return lengths, np.exp(1.6 * x + curvature * (x - 4.5) ** 2 + noise), groups


def dense_cr2(design, response, clusters, contrast):
    """CR2 standard error of a contrast and Satterthwaite's degrees of freedom: Bell and McCaffrey's n × n matrices.

    Roots are pseudo-inverse, as columns that are constant within a cluster need them.
    """
    bread = np.linalg.inv(design.T @ design)
    maker = np.eye(len(design)) - design @ bread @ design.T
    residuals = maker @ response
    variance, columns = 0.0, []
    for cluster in np.unique(clusters):
        rows = cluster == clusters
        values, vectors = np.linalg.eigh(maker[np.ix_(rows, rows)])
        root = np.divide(1.0, np.sqrt(np.maximum(values, 1e-30)), out=np.zeros_like(values), where=values > 1e-9)
        weight = (vectors * root) @ vectors.T @ design[rows] @ bread @ contrast
        variance += (weight @ residuals[rows]) ** 2
        columns.append(maker[:, rows] @ weight)
    values = np.linalg.eigvalsh(np.array(columns) @ np.array(columns).T)
    return np.sqrt(variance), values.sum() ** 2 / (values**2).sum()
