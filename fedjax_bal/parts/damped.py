"""FL-CIR's aggregation: the model moves by as much as the cohort's share of all data."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_bal.parts.part import part
from fedjax_bal.parts.roles import Step
from fedjax_bal.types import Aggregate, Cohort, PyTree


@part
class ParticipatingShare(Step):
    r"""Scales the mean update by the share of all samples that the clients who delivered hold.

    $w \leftarrow \sum_S p_k w_k + (1 - \sum_S p_k) w$ with $p_k = n_k / n$ over all N clients: those who are not there
    count as having kept the model.

    References:
        FL-CIR (Yang et al., 2021), eq. 4, and the authors' code. Batch statistics are averaged without it.
    """

    def step(self, delta: PyTree, cohort: Cohort, aggregate: Aggregate, state: Any, params: PyTree) -> PyTree:
        """The update times the share, like params."""
        del aggregate, state, params
        share = (cohort.sizes * cohort.delivered).sum() / jnp.maximum(cohort.total_size, 1.0)
        return jax.tree.map(lambda leaf: share * leaf, delta)
