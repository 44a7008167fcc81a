"""The paper's experiments: its tables and figures, with our numbers beside the printed ones.

>>> from hemf.experiments import EXPERIMENTS
>>> list(EXPERIMENTS)[:2]
['table1', 'figure4']
"""

from hemf.data import datasets  # with the sets that hemf.experiments.data adds
from hemf.experiments.catalog import ALL, EXPERIMENTS, Experiment, Method, Part, chosen
from hemf.experiments.data import read_votes
from hemf.experiments.netflix import pack_netflix
from hemf.experiments.packed import PackedRatings, read_packed

__all__ = [
    "ALL",
    "EXPERIMENTS",
    "Experiment",
    "Method",
    "PackedRatings",
    "Part",
    "chosen",
    "datasets",
    "pack_netflix",
    "read_packed",
    "read_votes",
]
