"""Least squares with classical, heteroscedasticity-consistent and cluster-robust covariances."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from gradstats.stats.jackknife import Estimate

EIGENVALUE_FLOOR = 1e-10


@dataclass(frozen=True)
class LeastSquares:
    r"""An ordinary least-squares fit, with the pieces every covariance estimator needs.

    Attributes:
        design: the regressors X, (n, k).
        coefficients: β̂ = (XᵀX)⁻¹Xᵀy, (k,).
        residuals: y − Xβ̂, (n,).
        bread: (XᵀX)⁻¹, (k, k).
        absorbed: (n,) leverages of the parameters eliminated before the fit (1/n_g of the means of a fixed-effects
            fit); they add to those of X, and their sum reduces the residual degrees of freedom. None for none.
    """

    design: Float[np.ndarray, "n k"]
    coefficients: Float[np.ndarray, " k"]
    residuals: Float[np.ndarray, " n"]
    bread: Float[np.ndarray, "k k"]
    absorbed: Float[np.ndarray, " n"] | None = None

    @property
    def residual_df(self) -> int:
        """The residual degrees of freedom: n less the parameters, those eliminated before the fit included."""
        n_absorbed = 0 if self.absorbed is None else round(float(self.absorbed.sum()))
        return self.design.shape[0] - self.design.shape[1] - n_absorbed

    def classical(self, contrasts: Float[np.ndarray, "c k"]) -> tuple[np.ndarray, np.ndarray]:
        """Return standard errors of ``contrasts @ β̂`` under equal variances, and their degrees of freedom."""
        sigma_sq = self.residuals @ self.residuals / self.residual_df
        variance = sigma_sq * np.einsum("ck,kl,cl->c", contrasts, self.bread, contrasts)
        return np.sqrt(variance), np.full(len(contrasts), float(self.residual_df))

    def hc3(self, contrasts: Float[np.ndarray, "c k"]) -> tuple[np.ndarray, np.ndarray]:
        r"""Return the HC3 standard errors: :math:`M Xᵀ\,\mathrm{diag}(e_i²/(1-h_i)²)\,X M` (MacKinnon and White 1985).

        A point of leverage 1 is fitted exactly and carries no information about the noise: if it moves a contrast, the
        standard error is NaN.
        """
        leverage = np.einsum("nk,kl,nl->n", self.design, self.bread, self.design)
        slack = 1.0 - leverage - (0.0 if self.absorbed is None else self.absorbed)
        inflated = np.full_like(leverage, np.nan)
        np.divide(self.residuals, slack, out=inflated, where=slack > EIGENVALUE_FLOOR)
        rows = contrasts @ self.bread @ self.design.T
        inflated[np.all(rows == 0.0, axis=0)] = 0.0  # such as the only completion of a prompt, within prompts
        variance = (rows**2) @ inflated**2
        return np.sqrt(variance), np.full(len(contrasts), float(self.residual_df))

    def cr0(self, contrasts: Float[np.ndarray, "c k"], clusters: Int[np.ndarray, " n"]) -> Float[np.ndarray, " c"]:
        r"""Cluster-robust standard errors without a correction for few clusters: :math:`M\,(\sum_g X_gᵀe_ge_gᵀX_g)\,M`.

        Args:
            contrasts: (c, k) linear combinations of the coefficients.
            clusters: (n,) cluster of each row, numbered from 0.
        """
        scores = np.zeros((int(clusters.max()) + 1, self.design.shape[1]))
        np.add.at(scores, clusters, self.design * self.residuals[:, None])
        return np.sqrt(((contrasts @ self.bread @ scores.T) ** 2).sum(axis=1))

    def cr2(
        self, contrasts: Float[np.ndarray, "c k"], clusters: Int[np.ndarray, " n"]
    ) -> tuple[np.ndarray, np.ndarray]:
        r"""Return the CR2 cluster-robust standard errors with Satterthwaite degrees of freedom.

        :math:`V = M\,(\sum_g X_gᵀ A_g e_g e_gᵀ A_g X_g)\,M` with :math:`A_g = (I - H_{gg})^{-1/2}`, unbiased when the
        errors are independent with equal variances; the degrees of freedom match the first two moments of the
        variance estimate under that working model (Bell and McCaffrey, Survey Methodology 28, 2002;
        Pustejovsky and Tipton, JBES 36, 2018).

        Args:
            contrasts: (c, k) linear combinations of the coefficients.
            clusters: (n,) cluster of each row, numbered from 0.

        Returns:
            (c,) standard errors and (c,) degrees of freedom.
        """
        k = self.design.shape[1]
        root = np.linalg.cholesky(self.bread)
        # With Z = X·root, H_gg = Z_g Z_gᵀ, so A_g Z_g = Z_g (I − Z_gᵀZ_g)^{-1/2}: k × k work a cluster.
        z = self.design @ root
        n_clusters = int(clusters.max()) + 1
        grams = np.zeros((n_clusters, k, k))  # Z_gᵀZ_g
        np.add.at(grams, clusters, z[:, :, None] * z[:, None, :])
        moments = np.zeros((n_clusters, k))  # Z_gᵀe_g
        np.add.at(moments, clusters, z * self.residuals[:, None])
        values, vectors = np.linalg.eigh(np.eye(k) - grams)
        inverse_root = np.zeros_like(values)
        np.divide(1.0, np.sqrt(np.maximum(values, 0.0)), out=inverse_root, where=values > EIGENVALUE_FLOOR)
        adjust = np.einsum("gij,gj,glj->gil", vectors, inverse_root, vectors)

        directions = contrasts @ root
        weights = np.einsum("ci,gij->cgj", directions, adjust)
        variance = np.einsum("cgj,gj->cg", weights, moments) ** 2
        # p_g = (I − H)_{·g} A_g X_g M c:  p_gᵀp_h = δ_gh q_gᵀq_g − u_gᵀu_h with u_g = Z_gᵀq_g.
        u = np.einsum("gij,cgj->cgi", grams, weights)
        q_sq = np.einsum("cgi,cgi->cg", weights, u)
        u_sq = np.einsum("cgi,cgi->cg", u, u)
        trace = (q_sq - u_sq).sum(axis=1)
        outer = np.einsum("cgi,cgj->cij", u, u)
        trace_sq = (q_sq**2 - 2.0 * q_sq * u_sq).sum(axis=1) + (outer**2).sum(axis=(1, 2))
        degrees = np.full(len(contrasts), np.nan)
        np.divide(trace**2, trace_sq, out=degrees, where=trace_sq > 0)
        return np.sqrt(variance.sum(axis=1)), degrees

    def contrast(self, contrast: Float[np.ndarray, " k"], clusters: Int[np.ndarray, " n"]) -> Estimate:
        """Estimate one linear combination of the coefficients, with the error and degrees of freedom of :meth:`cr2`.

        Args:
            contrast: (k,) the factors of the coefficients.
            clusters: (n,) cluster of each row, numbered from 0.
        """
        stderr, degrees = self.cr2(contrast[None], clusters)
        return Estimate(float(contrast @ self.coefficients), float(stderr[0]), "raw", float(degrees[0]))

    def without_each(self, clusters: Int[np.ndarray, " n"]) -> Float[np.ndarray, "g k"]:
        r"""Return the coefficients without each cluster in turn: :math:`β̂ - (XᵀX - X_gᵀX_g)^{-1} X_gᵀ e_g`.

        Args:
            clusters: (n,) cluster of each row, numbered from 0.

        Raises:
            ValueError: when the other clusters do not determine the coefficients.
        """
        k = self.design.shape[1]
        root = np.linalg.cholesky(self.bread)
        z = self.design @ root
        rest = np.tile(np.eye(k), (int(clusters.max()) + 1, 1, 1))
        np.subtract.at(rest, clusters, z[:, :, None] * z[:, None, :])
        moments = np.zeros(rest.shape[:2])
        np.add.at(moments, clusters, z * self.residuals[:, None])
        alone = np.flatnonzero(np.linalg.eigvalsh(rest)[:, 0] <= EIGENVALUE_FLOOR)
        if len(alone):
            raise ValueError(f"without cluster {alone[0]} the slope is not determined: measure more prompts")
        return self.coefficients - np.linalg.solve(rest, moments[:, :, None])[:, :, 0] @ root.T


def least_squares(
    design: Float[np.ndarray, "n k"],
    response: Float[np.ndarray, " n"],
    absorbed: Float[np.ndarray, " n"] | None = None,
) -> LeastSquares:
    """Fit ``response`` on ``design`` by ordinary least squares.

    Args:
        design: (n, k) regressors of full column rank.
        response: (n,) values to be explained.
        absorbed: (n,) leverages of the parameters already eliminated from both.

    Raises:
        ValueError: when the columns of ``design`` are linearly dependent.
    """
    q, r = np.linalg.qr(design)
    diagonal = np.abs(np.diag(r))
    if diagonal.min() <= np.finfo(float).eps * len(design) * diagonal.max():
        raise ValueError("design has linearly dependent columns: drop the regressor that repeats another")
    inverse = np.linalg.inv(r)
    coefficients = inverse @ (q.T @ response)
    return LeastSquares(
        design=design,
        coefficients=coefficients,
        residuals=response - design @ coefficients,
        bread=inverse @ inverse.T,
        absorbed=absorbed,
    )
