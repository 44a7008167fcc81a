"""The paper's experiments, run again: its tables and figures, our numbers beside the printed ones.

>>> from hemf.reproduce import EXPERIMENTS
>>> list(EXPERIMENTS)[:2]
['table1', 'figure4']
"""

from hemf.reproduce.experiments import ALL, EXPERIMENTS, Experiment, Method, Part, chosen

__all__ = ["ALL", "EXPERIMENTS", "Experiment", "Method", "Part", "chosen"]
