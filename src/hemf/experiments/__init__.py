"""The paper's experiments: its tables and figures, with our numbers beside the printed ones.

>>> from hemf.experiments import EXPERIMENTS
>>> list(EXPERIMENTS)[:2]
['table1', 'figure4']
"""

from hemf.data import datasets  # with the sets that this package adds
from hemf.experiments.catalog import ALL, EXPERIMENTS, Experiment, Method, Part, select
from hemf.experiments.data import read_votes
from hemf.experiments.netflix import convert_netflix, read_netflix

__all__ = [
    "ALL",
    "EXPERIMENTS",
    "Experiment",
    "Method",
    "Part",
    "convert_netflix",
    "datasets",
    "read_netflix",
    "read_votes",
    "select",
]
