"""smurff: Bayesian probabilistic matrix factorization by Gibbs sampling, with threads.

``precision`` is that of the noise, of ratings with deviation 1; it is fixed, as the default of
the package is far too large for ratings and what it samples on the way cannot be asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import smurff
from adapter import Task, worth_a_point
from scipy import sparse

PACKAGES = ("smurff", "scipy")


def run(task: Task, settings: dict[str, Any]) -> None:
    """Step through the chain; the package averages predictions of the test part itself."""
    shape = (task.n_users, task.n_items)
    width = np.int64(task.n_items)
    keys, back = np.unique(task.test_users * width + task.test_items, return_inverse=True)
    with task.clock.running("fit"):
        ratings, centre, scale = task.standardised()
        ratings[ratings == 0] = 1e-12  # an explicit zero must not be dropped
        pairs = (keys // width, keys % width)
        session = smurff.TrainSession(
            priors=["normal", "normal"],
            num_latent=settings["rank"],
            num_threads=task.threads,
            burnin=settings["burn_in"],
            nsamples=settings["draws"],
            seed=task.seed,
            verbose=0,
        )
        train = sparse.coo_matrix((ratings, (task.users, task.items)), shape=shape)
        noise = smurff.FixedNoise(settings["precision"])
        session.addTrainAndTest(
            train.tocsr(), sparse.csr_matrix((np.ones(keys.size), pairs), shape=shape), noise
        )
        session.init()
        step = 0
        while session.step() is not None:
            step += 1
            draws = step - settings["burn_in"]
            if task.curve and draws > 0 and worth_a_point(draws):
                with task.clock.running("predict"):
                    mean, _ = predictions(session, keys, width)
                    task.point(task.clock.fitted(), step, centre + scale * mean[back])
    with task.clock.running("predict"):
        mean, spread = predictions(session, keys, width)
        variance = spread / max(settings["draws"] - 1, 1) + 1 / settings["precision"]
        final, std = centre + scale * mean[back], scale * np.sqrt(variance[back])
    if task.curve:
        task.point(task.clock.spent["fit"], step, final)
        task.result["curve_by"] = "stepping"
    task.finish(final, std, noise_variance=scale**2 / settings["precision"])


def predictions(session: Any, keys: np.ndarray, width: np.int64) -> tuple[np.ndarray, np.ndarray]:
    """Return the average of the draws and their summed squared deviations, in the order of keys."""
    found = session.getTestPredictions()
    of = np.array([p.coords[0] * int(width) + p.coords[1] for p in found], dtype=np.int64)
    order = np.argsort(of)
    if not np.array_equal(of[order], keys):
        raise RuntimeError("smurff predicted other pairs than it was asked for")
    mean = np.array([p.pred_avg for p in found])[order]
    return mean, np.array([p.var for p in found])[order]
