"""Public names whose docstring has no example of its own, and where one is, which their page of the site says."""

from __future__ import annotations

#: Results → the function that returns them, whose docstring has an example.
RETURNED_BY = {
    "analyses.Allocation": "allocate",
    "analyses.BatchSizes": "analyses.batch_size",
    "stats.AlphaDifference": "stats.alpha_difference",
    "analyses.AlphaReport": "alpha_report",
    "analyses.CriticQuality": "analyses.critic_quality",
    "stats.CurvatureTest": "stats.curvature_test",
    "analyses.EquivalentGroupSize": "equivalent_group_size",
    "analyses.GroupSizes": "analyses.variance_by_group_size",
    "values.FittedValues": "values.fit_values",
    "analyses.ImpliedShift": "implied_shift",
    "analyses.Drift": "analyses.drift",
    "analyses.LengthBins": "variance_by_length",
    "analyses.LengthRewardCorrelation": "length_reward_correlation",
    "stats.LengthScalingFit": "fit_length_scaling",
    "analyses.LogLengths": "analyses.log_lengths",
    "analyses.Mismatch": "analyses.mismatch",
    "stats.MundlakTest": "stats.mundlak_test",
    "analyses.OnPolicyCheck": "check_on_policy",
    "Policy": "load_policy",
    "analyses.PolicyProfile": "analyses.profile_policy",
    "Problem": "load_prompts",
    "analyses.RatioDiagnostics": "ratio_diagnostics",
    "analyses.PromptPlan": "plan_alpha",
    "analyses.SamplerGap": "sampler_gap",
    "analyses.LogNoise": "analyses.log_noise",
    "analyses.SilentGroups": "analyses.silent_groups",
    "analyses.Spike": "analyses.spike",
    "analyses.SuccessBins": "variance_by_success",
    "analyses.VarianceComparison": "compare",
    "analyses.VarianceCurve": "variance_curve",
    "estimators.Estimator": "estimators.get",
    "reference.GradientMoments": "reference.EnumeratedPolicy",
}
#: Functions that take the same arguments as another, whose docstring has the example.
CALLED_LIKE = {
    "stats.fit_energy_scaling": "analyses.length_scaling_by_block",
}
#: Names that need a run, probes or a trainer: the page that uses them, without suffix.
USED_ON = {
    "analyses.OptimalBaselines": "docs/read_results",
    "analyses.ProxyQuality": "docs/tokens",
    "stats.TokenProfile": "docs/tokens",
    "stats.concentration": "docs/tokens",
    "stats.local_slope": "docs/tokens",
    "values.monte_carlo_values": "docs/tokens",
    "optimal_baselines": "docs/read_results",
    "proxy_quality": "docs/tokens",
    "read_sweep": "docs/measure",
    "run_sweep": "docs/measure",
    "stats.token_correlation": "docs/tokens",
    "estimators.token_weightings": "docs/estimators",
    "integrations.trl.VarianceMonitor": "docs/training",
    "integrations.trl.use_estimator": "docs/training",
    "analyses.plot_allocation": "docs/papers",
    "analyses.plot_alpha_by_block": "docs/papers",
    "analyses.plot_batch_size": "docs/papers",
    "analyses.plot_block_heatmap": "docs/papers",
    "plots.plot_concentration": "docs/papers",
    "analyses.plot_critic": "docs/papers",
    "plots.plot_group_size": "notebooks/02_variance_vs_baseline",
    "plots.plot_length_bins": "docs/papers",
    "analyses.plot_length_reward": "notebooks/02_variance_vs_baseline",
    "plots.plot_prompt_parts": "notebooks/02_variance_vs_baseline",
    "plots.plot_proxy": "docs/papers",
    "plots.plot_shares": "docs/papers",
    "plots.plot_sweep": "notebooks/04_inside_training",
    "plots.plot_token_energy_panels": "docs/papers",
    "plots.plot_token_correlation": "docs/papers",
    "plots.plot_token_energy": "docs/papers",
    "analyses.plot_variance_curve": "docs/read_results",
    "plots.plot_variance_of_runs": "docs/papers",
    "plots.plot_variance_panels": "notebooks/02_variance_vs_baseline",
    "plots.write_sample_size": "docs/papers",
    "tables.Layout": "docs/papers",
    "tables.alpha_table": "notebooks/03_paper_figures",
    "tables.variance_table": "docs/papers",
}
#: The others → one line that uses them.
LINES = {
    "analyses.AlphaByBlock": "gs.analyses.alpha_by_block(measured).to_frame()",
    "analyses.alpha_by_block": "gs.analyses.alpha_by_block(measured)",
    "analyses.ProxiesByBlock": "gs.analyses.proxies_by_block(measured).to_frame()",
    "analyses.proxies_by_block": "gs.analyses.proxies_by_block(measured)",
    "analyses.variance_by_block": 'gs.analyses.variance_by_block(measured, ["rloo"])',
    "analyses.ScalarResult": "gs.analyses.ImpliedShift.columns()",
    "analyses.plan": "gs.analyses.plan(measured).sentence()",
    "analyses.VarianceByBlock": 'gs.compare(measured, ["rloo"], blocks=True).to_frame()',
    "stats.alpha_without_each_prompt": "gs.stats.alpha_without_each_prompt(fit).head(3)",
    "plan_signal": 'gs.plan_signal(gs.compare(measured, ["rloo"], group_size=4), "rloo")',
    "read_measurement": 'gs.read_measurement("runs/embedded")',
    "write_report": 'gs.write_report("runs/embedded")',
    "estimators.recipes.names": "gs.recipes.names()",
    "plots.Appearance": 'gs.plots.estimator_appearance("rloo").marker',
    "plots.estimator_appearance": 'gs.plots.estimator_appearance("rloo").color',
    "plots.estimator_unit": 'gs.plots.estimator_unit("rloo")',
    "analyses.Analysis": 'gs.analyses.Analysis("lengths", lengths, options=["longest"], columns=Length.columns())',
    "analyses.AnalysisFigure": 'gs.analyses.AnalysisFigure("lengths", "Mean lengths.", draw)',
    "analyses.FurtherTable": 'gs.analyses.FurtherTable("shortest", frame_of_shortest, columns=Length.columns())',
    "analyses.Column": 'gs.analyses.Column("length", "mean tokens of its completions", "mean length")',
    "analyses.Result": "gs.analyses.Allocation.question",
    "analyses.Row": "gs.analyses.Allocation.row.columns()",
    "analyses.column": 'gs.analyses.column("label of the estimator", short=True)',
    "analyses.estimate": 'gs.analyses.estimate("variance over that of rloo", "relative noise")',
    "analyses.plot_variance_curve_panels": "gs.analyses.plot_variance_curve_panels(curve)",
    "plots.style.VENUES": 'gs.plots.VENUES["icml"]',
    "plots.varying_settings": 'gs.plots.varying_settings(sweep.to_frame(), ["sampling.temperature"])',
    "tables.Table": 'gs.tables.alpha_table({"mine": fit}).to_markdown()',
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
