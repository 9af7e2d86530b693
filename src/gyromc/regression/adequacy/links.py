"""Whether the link between the columns and the probabilities suits: two classes, and classes in their order.

Input: the predictive law, X and y. Output: a `ModelCheck` by a score test, or None for other families.
"""

import numpy as np
from scipy import linalg, special

from gyromc.regression.adequacy.checks import SETTINGS, Aspect, ModelCheck
from gyromc.regression.adequacy.residuals import ModelResiduals
from gyromc.regression.draws import Predictive
from gyromc.targets.families import Bernoulli, Binomial, Ordinal


def link(law: Predictive, output: ModelResiduals, columns: int) -> ModelCheck | None:
    """Whether probabilities rise more steeply towards 1 or towards 0 than the logistic link lets them.

    Aranda-Ordaz's links, p = 1 - (1 + λeᵗ)^{-1/λ}, contain the logistic one (λ = 1) and the complementary log-log (λ → 0). About
    λ = 1 the linear predictor changes by log(1 + eᵗ)/p - 1. With one column a link cannot be told from a curve: None.
    """
    if not isinstance(law.likelihood, Bernoulli | Binomial) or columns < 2:
        return None
    t = law.t.mean(axis=0)
    bend = (np.logaddexp(0.0, t) / special.expit(t) - 1)[:, None]
    (share,), (p,) = output.each(bend)
    steeper = bool(output.left(bend)[:, 0] @ output.values > 0)
    return ModelCheck(Aspect.LINK, float(share), float(p), share > SETTINGS.link_share, {"steeper": steeper})


def proportional_odds(law: Predictive, X: np.ndarray, y: np.ndarray, names: list[str]) -> ModelCheck | None:
    """Whether a column changes the odds of all higher classes alike, column by column; None unless classes are ordered.

    Each of the K cutpoints has a linear predictor η_k = c_k - t. The score of a slope of its own for all but one of them is
    compared with its covariance, both given the cutpoints and slopes that were fitted.
    """
    if not isinstance(law.likelihood, Ordinal) or law.likelihood.num_classes < 3 or not X.shape[1]:
        return None
    eta = np.array([cut.mean() for cut in law.given]) - law.t.mean(axis=0)[:, None]
    (n, K), place = eta.shape, np.arange(len(law.given))
    upto = special.expit(eta)
    p = np.maximum(np.diff(np.column_stack([np.zeros(n), upto, np.ones(n)]), axis=1), 1e-300)
    change = np.zeros((n, K + 1, K))  # ∂p_c/∂η_k
    change[:, place, place] = upto * (1 - upto)
    change[:, place + 1, place] = -upto * (1 - upto)
    own = np.arange(n), y.astype(int)
    score = change[own] / p[own][:, None]
    information = np.einsum("nck,ncl,nc->nkl", change, change, 1 / p)
    Z = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    fitted = np.concatenate([np.broadcast_to(np.eye(K), (n, K, K)), np.repeat(Z[:, None, :], K, axis=1)], axis=2)
    found = []
    for j, name in enumerate(names):
        more = Z[:, j, None, None] * np.eye(K)[:, 1:]
        both = np.concatenate([fitted, more], axis=2)
        U = np.einsum("nka,nk->a", both, score)
        V = np.einsum("nka,nkl,nlb->ab", both, information, both)
        a = fitted.shape[2]
        across = V[a:, :a] @ linalg.pinvh(V[:a, :a])
        left, covariance = U[a:] - across @ U[:a], V[a:, a:] - across @ V[:a, a:]
        statistic = float(left @ linalg.pinvh(covariance) @ left)
        found.append((float(special.chdtrc(K - 1, statistic)), max(0.0, statistic - K + 1) / n, name))
    least, share, name = min(found)
    chance = min(1.0, len(found) * least)
    return ModelCheck(Aspect.PROPORTIONAL, share, chance, share > SETTINGS.curve_share, {"column": name})
