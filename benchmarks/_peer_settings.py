"""Which peers there are, and the settings of each on each set.

Those of MovieLens are the ones by which the peers' figures were first measured; for the other sets
each peer has the best along ``AXES`` on a tenth held out of the training part
(``python benchmarks/peers.py --search``). No test part was looked at for any of them.
"""

from __future__ import annotations

from typing import Any

from _peer_runs import Peer

Settings = dict[str, Any]
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "myfm": ("myfm==0.4.0",),
    "smurff": ("smurff==1.1",),
    "surprise": ("scikit-surprise==1.1.5",),
    "cmfrec": ("cmfrec==3.5.1.post14", "pandas", "threadpoolctl"),
    "libmf": ("libmf==0.9.2",),
}
ADAPTERS: dict[str, tuple[str, str | None]] = {  # adapter and environment
    "hemf": ("with_hemf", None),
    "hemf-implicit": ("with_hemf", None),
    "hemf-gibbs": ("with_hemf", None),
    "myfm": ("with_myfm", "myfm"),
    "myfm-features": ("with_myfm", "myfm"),
    "smurff": ("with_smurff", "smurff"),
    "surprise-svd": ("with_surprise", "surprise"),
    "surprise-knn": ("with_surprise", "surprise"),
    "cmfrec": ("with_cmfrec", "cmfrec"),
    "libmf": ("with_libmf", "libmf"),
}
COMMON: dict[str, Settings] = {
    "hemf": {},
    "hemf-implicit": {"implicit_features": True},
    "hemf-gibbs": {"sampled": True, "samples": 600, "kept": 600},
    "myfm": {"features": False, "sweeps": 150, "burn_in": 10},
    "myfm-features": {"features": True, "sweeps": 150, "burn_in": 10},
    "smurff": {"burn_in": 30, "draws": 150},
    "surprise-svd": {"algorithm": "svd", "standardise": False},
    "surprise-knn": {"algorithm": "knn"},
    "cmfrec": {"standardise": False},
    "libmf": {"rate": 0.1},
}
"""Of each peer on all sets, unless stated otherwise below."""

FILMS: dict[str, Settings] = {
    "hemf-implicit": {"n_factors": 32},
    "myfm": {"rank": 20, "sweeps": 300},
    "myfm-features": {"rank": 32, "sweeps": 190},
    "smurff": {"rank": 32, "precision": 1.9},
    "surprise-svd": {"rank": 100, "epochs": 50, "rate": 0.007, "penalty": 0.06},
    "cmfrec": {"rank": 50, "penalty": 0.08, "iterations": 15},
    "libmf": {"rank": 64, "penalty": 0.08, "epochs": 60},
}
"""Of MovieLens 1M, and of EachMovie, which is of the same kind and size."""

WIDE: dict[str, Settings] = {  # ratings of 1 to 100, and of -10 to 10
    "surprise-svd": {"standardise": True},
    "cmfrec": {"standardise": True},
}
CHOSEN: dict[str, dict[str, Settings]] = {
    "ml-1m-classic": FILMS,
    **{f"weak-{seed}": FILMS for seed in range(10)},
    "eachmovie": FILMS,
    "ml-100k": {
        "hemf-implicit": {"n_factors": 10, "tol": 2e-5},
        "hemf-gibbs": {"n_factors": 10},
        "myfm": {"rank": 10},
        "myfm-features": {"rank": 20, "sweeps": 250},
        "smurff": {"rank": 16, "precision": 1.9},
        "surprise-svd": {"rank": 100, "epochs": 50, "rate": 0.015, "penalty": 0.12},
        "cmfrec": {"rank": 50, "penalty": 0.15, "implicit": True, "iterations": 30},
        "libmf": {"rank": 64, "penalty": 0.15, "epochs": 60},
    },
    "kiba": {
        "hemf-implicit": {"n_factors": 32, "noise_scales": "item"},
        "hemf-gibbs": {"n_factors": 32, "noise_scales": "item"},
        "myfm": {"rank": 32},
        "myfm-features": {"rank": 32},
        "smurff": {"rank": 32, "precision": 4.0},
        "surprise-svd": {"rank": 100, "epochs": 50, "rate": 0.015, "penalty": 0.015},
        "surprise-knn": {"of": "users"},
        "cmfrec": {"rank": 50, "penalty": 0.02},
        "libmf": {"rank": 64, "penalty": 0.02, "centre": True, "epochs": 60},
    },
    "chembl": {
        "hemf-implicit": {"n_factors": 10, "noise_scales": "item"},
        "hemf-gibbs": {"n_factors": 10, "noise_scales": "item"},
        "myfm": {"rank": 32},
        "myfm-features": {"rank": 32},
        "cmfrec": {"rank": 100, "penalty": 0.15, "implicit": True, "iterations": 30},
        "smurff": {"rank": 16, "precision": 8.0},
        "surprise-svd": {"rank": 20, "epochs": 50, "rate": 0.015, "penalty": 0.06},
        "libmf": {"rank": 128, "penalty": 0.01, "centre": True, "epochs": 30},
    },
    "yahoo-music": {
        "hemf-implicit": {"n_factors": 10, "implicit_features": "item"},
        "hemf-gibbs": {"n_factors": 10, "implicit_features": "item"},
        **WIDE,
    },
    "filmtrust": {"hemf-implicit": {"n_factors": 10}, "hemf-gibbs": {"n_factors": 10}},
    "flixster": {
        "hemf-implicit": {"n_factors": 2, "implicit_features": "item", "max_sweeps": 20},
        "hemf-gibbs": {
            "n_factors": 4,
            "implicit_features": "item",
            "noise_scales": "user",
            "outliers": True,
            "ordinal": True,
            "samples": 2000,
            "kept": 2000,
        },
    },
    "douban": {
        "hemf-implicit": {"n_factors": 3, "implicit_features": "item"},
        "hemf-gibbs": {"n_factors": 10},
    },
    "jester": {
        "hemf-implicit": {"n_factors": 20},
        "myfm-features": {"rank": 10},
        "myfm": {"rank": 10, "sweeps": 60},
        "smurff": {"rank": 16, "burn_in": 20, "draws": 60},
        "surprise-svd": {"standardise": True, "rank": 100, "rate": 0.007, "penalty": 0.06},
        "cmfrec": {"standardise": True},
        "libmf": {"rank": 128, "penalty": 0.3, "epochs": 30},
    },
}
QUICK: dict[str, Settings] = {
    "hemf": {"max_sweeps": 20},
    "hemf-implicit": {"max_sweeps": 20},
    "hemf-gibbs": {"samples": 20, "burn_in": 5},
    "myfm": {"sweeps": 30},
    "myfm-features": {"sweeps": 30},
    "smurff": {"draws": 20, "burn_in": 10},
    "surprise-svd": {"epochs": 10},
    "cmfrec": {"iterations": 5},
    "libmf": {"epochs": 10},
}


AXES: dict[str, dict[str, list[Any]]] = {
    "hemf-implicit": {
        "communities": ["one"],
        "n_factors": [20, 32, 64, 10, 4, 2],
        "implicit_features": [True, "item", "user"],
        "noise_scales": ["both", "item", "user"],
    },
    "myfm": {"rank": [10, 20, 32, 64, 4]},
    "myfm-features": {"rank": [10, 20, 32, 64, 4]},
    "smurff": {"precision": [2.0, 1.3, 4.0, 8.0], "rank": [16, 32, 64, 8]},
    "surprise-svd": {
        "penalty": [0.06, 0.12, 0.2, 0.03, 0.015, 0.008],
        "rank": [100, 20],
        "epochs": [50, 25],
        "rate": [0.007, 0.015],
    },
    "surprise-knn": {
        "neighbours": [40],
        "of": ["items", "users"],
        "similarity": ["pearson_baseline"],
    },
    "cmfrec": {
        "penalty": [0.08, 0.15, 0.3, 0.04, 0.02, 0.01],
        "implicit": [False, True],
        "rank": [50, 100, 10],
        "iterations": [15, 30],
    },
    "libmf": {
        "penalty": [0.08, 0.15, 0.3, 0.04, 0.02, 0.01],
        "centre": [False, True],
        "rank": [64, 128, 16],
        "epochs": [60, 30],
    },
}
"""What is searched: one setting after the other, the rest at their first values or at the best."""

IN_SEARCH: dict[str, Settings] = {
    "myfm": {"sweeps": 60},
    "myfm-features": {"sweeps": 60},
    "smurff": {"draws": 50, "burn_in": 20},
}
"""Samplers are compared after fewer draws than they have in the end."""


def peer(name: str, on: str, *, quick: bool = False, given: Settings | None = None) -> Peer:
    """Return a peer with its settings for a set; those given take precedence."""
    adapter, environment = ADAPTERS[name]
    first = {axis: values[0] for axis, values in AXES.get(name, {}).items()}
    settings = {**COMMON[name], **first, **CHOSEN.get(on, {}).get(name, {}), **(given or {})}
    if quick:
        settings |= QUICK.get(name, {})
    wanted = ENVIRONMENTS[environment] if environment else ()
    return Peer(name, adapter, environment, wanted, settings)
