"""Settings of a model chosen by ratings that it has not seen.

>>> from hemf.data.datasets import draw
>>> from hemf.tuning import tune
>>> table = draw(40, 30, density=0.5, rng=0)
>>> ratings = list(zip(table.users, table.items, table.ratings))
>>> tuned = tune(ratings, fixed={"max_sweeps": 5}, space={"n_factors": [2, 5]}, rng=0)
>>> [trial.settings["n_factors"] for trial in tuned.trials]
[20, 2, 5]
>>> tuned.best.score == min(trial.score for trial in tuned.trials)
True
"""

from hemf.tuning.search import SearchReport, Tuning, check_space, tune
from hemf.tuning.trial import Trial

__all__ = ["SearchReport", "Trial", "Tuning", "check_space", "tune"]
