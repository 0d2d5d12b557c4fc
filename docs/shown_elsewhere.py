"""Public names whose docstring has no example of its own, and where one is, which their page of the site says."""

from __future__ import annotations

#: Results → the function that returns them, whose docstring has an example.
RETURNED_BY = {
    "Allocation": "allocate",
    "AlphaDifference": "alpha_difference",
    "AlphaPlan": "plan_alpha",
    "AlphaReport": "alpha_report",
    "CriticQuality": "critic_quality",
    "CurvatureTest": "curvature_test",
    "EquivalentGroupSize": "equivalent_group_size",
    "FittedValues": "fit_values",
    "ImpliedShift": "implied_shift",
    "LengthBins": "variance_by_length",
    "LengthRewardCorrelation": "length_reward_correlation",
    "LengthScalingFit": "fit_length_scaling",
    "MundlakTest": "mundlak_test",
    "OnPolicyCheck": "check_on_policy",
    "Policy": "load_policy",
    "PolicyProfile": "profile_policy",
    "Problem": "load_prompts",
    "RatioDiagnostics": "ratio_diagnostics",
    "RatioPlan": "plan_ratio",
    "SamplerGap": "sampler_gap",
    "SuccessBins": "variance_by_success",
    "VarianceComparison": "compare",
    "VarianceCurve": "variance_curve",
    "estimators.Estimator": "estimators.get",
    "reference.ExactOptimum": "reference.exact_optimal_baselines",
    "reference.GradientMoments": "reference.EnumeratedPolicy",
}
#: Functions that take the same arguments as another, whose docstring has the example.
CALLED_LIKE = {
    "equivalent_group_sizes": "equivalent_group_size",
    "fit_energy_scaling": "length_scaling_by_block",
    "variances_by_length": "variance_by_length",
    "reference.exact_minimiser": "reference.exact_optimal_baselines",
    "reference.exact_optimal_mixture": "reference.exact_optimal_baselines",
    "reference.exact_optimal_shift": "reference.exact_optimal_baselines",
}
#: Names that need a run, probes or a trainer: the page that uses them, without suffix.
USED_ON = {
    "OptimalBaselines": "docs/curves",
    "ProxyQuality": "docs/tokens",
    "SweepResult": "docs/sweeps",
    "TokenProfile": "docs/tokens",
    "concentration": "docs/tokens",
    "drift_along": "docs/tokens",
    "local_slope": "docs/tokens",
    "monte_carlo_values": "docs/tokens",
    "optimal_baselines": "docs/curves",
    "proxy_quality": "docs/tokens",
    "read_sweep": "docs/sweeps",
    "read_verl_rollouts": "docs/samplers",
    "run_sweep": "docs/sweeps",
    "surprise_along": "docs/tokens",
    "token_correlation": "docs/tokens",
    "estimators.token_weightings": "docs/estimators",
    "integrations.trl.VarianceMonitor": "docs/training",
    "integrations.trl.use_estimator": "docs/training",
    "analyses.plot_allocation": "docs/figures",
    "plots.plot_alpha_by_block": "docs/figures",
    "plots.plot_block_heatmap": "docs/figures",
    "plots.plot_concentration": "docs/figures",
    "analyses.plot_critic": "docs/figures",
    "plots.plot_group_size": "notebooks/02_variance_vs_baseline",
    "plots.plot_length_bins": "docs/figures",
    "plots.plot_length_reward": "notebooks/02_variance_vs_baseline",
    "plots.plot_prompt_parts": "notebooks/02_variance_vs_baseline",
    "plots.plot_proxy": "docs/figures",
    "plots.plot_shares": "docs/figures",
    "plots.plot_sweep": "notebooks/04_inside_training",
    "plots.plot_token_energy_panels": "docs/figures",
    "plots.plot_token_correlation": "docs/figures",
    "plots.plot_token_energy": "docs/figures",
    "analyses.plot_variance_curve": "docs/curves",
    "plots.plot_variance_of_runs": "docs/figures",
    "plots.plot_variance_panels": "notebooks/02_variance_vs_baseline",
    "plots.write_sample_size": "docs/figures",
    "tables.Layout": "docs/figures",
    "tables.alpha_table": "notebooks/03_paper_figures",
    "tables.variance_table": "docs/figures",
}
#: The others → one line that uses them.
LINES = {
    "SignalPlan": 'gs.plan_signal(gs.compare(measured, ["rloo"], group_size=4), "rloo").n_prompts',
    "alpha_without_each_prompt": "gs.stats.alpha_without_each_prompt(fit).head(3)",
    "plan_signal": 'gs.plan_signal(gs.compare(measured, ["rloo"], group_size=4), "rloo")',
    "read_measurement": 'gs.read_measurement("runs/embedded")',
    "write_report": 'gs.write_report("runs/embedded")',
    "estimators.recipes.names": "gs.recipes.names()",
    "plots.Appearance": 'gs.plots.estimator_appearance("rloo").marker',
    "plots.estimator_appearance": 'gs.plots.estimator_appearance("rloo").color',
    "plots.estimator_unit": 'gs.plots.estimator_unit("rloo")',
    "analyses.plot_variance_curve_panels": "gs.analyses.plot_variance_curve_panels(curve)",
    "plots.style.VENUES": 'gs.plots.VENUES["icml"]',
    "plots.varying_settings": 'gs.plots.varying_settings(sweep.to_frame(), ["sampling.temperature"])',
    "tables.Table": 'gs.tables.alpha_table({"mine": fit}).to_markdown()',
    "tables.clear_winner": "gs.tables.clear_winner(table.to_frame())",
    "tables.lowest": "gs.tables.lowest(table.to_frame())",
    "tables.markdown_escape": 'gs.tables.markdown_escape("a|b")',
}


def sentence_about(name: str) -> list[str]:
    """Return the lines that a page of the site adds to the docstring of a public name."""
    short = name.removeprefix("gradstats.")
    if short in RETURNED_BY:
        return [f"Made by :func:`gradstats.{RETURNED_BY[short]}`, whose page has an example."]
    if short in CALLED_LIKE:
        return [f"Called as in the example of :func:`gradstats.{CALLED_LIKE[short]}`."]
    if short in USED_ON:
        return [f"Used on the page :doc:`/{USED_ON[short]}`."]
    if short in LINES:
        return [".. code-block:: python", "", f"   {LINES[short]}"]
    return []
