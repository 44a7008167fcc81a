"""Whether a fit has room in memory, asked before any of it is taken."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hemf.engines.threads import chunk_bounds
from hemf.errors import ParameterError
from hemf.inference.fit import FitOptions
from hemf.model.design import Design
from hemf.model.layout import Layout
from hemf.model.ridge import DIRECT, PRECISE
from hemf.ratings import Ratings, Sparse

DOUBLE = 8  # bytes of a float64
MEMINFO = Path("/proc/meminfo")


def check_memory(
    ratings: Ratings,
    options: FitOptions,
    *,
    validated: bool,
    designs: Mapping[str, Design] = MappingProxyType({}),
) -> None:
    """Complain of a fit that needs more memory than there is; ``validated`` as in `fit_bytes`."""
    needed, there = fit_bytes(ratings, options, validated=validated), available_bytes()
    needed += sum(regression_bytes(design, options.n_factors) for design in designs.values())
    if there is None or needed <= there:
        return
    limits = [f"max_{side}_communities" for side, n in options.max_communities.items() if n > 1]
    raise ParameterError(
        f"n_factors={options.n_factors} with {ratings.n_users:,} users and {ratings.n_items:,} "
        f"items needs about {readable(needed)} of memory, and {readable(there)} are available; "
        f"choose a smaller {' or '.join(['n_factors', *limits])}",
        value=options.n_factors,
    )


def fit_bytes(ratings: Ratings, options: FitOptions, *, validated: bool) -> int:
    """Estimate the memory that a fit takes at its height, beside the ratings.

    That is the state; of its larger side a copy to try changes on, and the second moments once
    more to cluster rows, in float64; and the statistics of a half-sweep. Where the fit is
    ``validated`` on held-out ratings, the best state so far is kept too.
    """
    itemsize = np.dtype(options.dtype).itemsize
    tables = {"user": ratings.by_user, "item": ratings.by_item}
    sides = [_side_bytes(table, name, options, itemsize) for name, table in tables.items()]
    statistics = [_statistics_bytes(table, name, options) for name, table in tables.items()]
    seeds = max(options.max_communities.values()) > 1
    working = 1 + DOUBLE // itemsize if seeds else 2  # the start needs two copies for a moment
    moods = ratings.n_ratings * (8 + 2 * itemsize + 8 * DOUBLE) if options.moods else 0
    return moods + sum(sides) * (2 if validated else 1) + working * max(sides) + max(statistics)


def regression_bytes(design: Design, n_factors: int) -> int:
    """Estimate the memory that regressing factors on features takes, at its height.

    That is when C is found anew while the last one is still there.

    >>> import numpy as np
    >>> regression_bytes(Design.of({"few": np.ones((1000, 2))}), 3) < 1e6
    True
    """
    size = min(design.n_rows, design.n_columns)
    solutions = 6 * DOUBLE * (n_factors + 1) * (design.n_rows + design.n_columns)
    entries = 6 * design.values.size * (design.values.itemsize + 4)
    if size > DIRECT:
        return solutions + entries
    matrices = 4 + 2 * (design.widths.size if design.n_rows < design.n_columns else 1)
    itemsize = DOUBLE if size <= PRECISE else design.values.itemsize
    return solutions + entries + matrices * size * size * itemsize


def available_bytes() -> int | None:
    """Return the memory that can be had, or None where the system does not tell.

    What the system itself says is available counts its file cache, which it gives up for us;
    ``sysconf`` knows only the pages that are idle, far too few, and those that there are.
    """
    try:
        facts = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def readable(size: int) -> str:
    """Say a number of bytes in gigabytes, or megabytes where it is less than one.

    >>> readable(3 * 2**30 // 2), readable(200 * 2**20)
    ('1.5 GB', '200 MB')
    """
    return f"{size / 2**30:,.1f} GB" if size >= 2**30 else f"{size / 2**20:,.0f} MB"


def _side_bytes(table: Sparse, name: str, options: FitOptions, itemsize: int) -> int:
    """Means, packed second moments and memberships of the rows."""
    layout = _layout(name, options)
    communities = min(options.max_communities[name], table.n_rows)
    return table.n_rows * (layout.total + layout.packed + communities) * itemsize


def _statistics_bytes(table: Sparse, name: str, options: FitOptions) -> int:
    """Packed covariances of the communities, for every chunk of rows."""
    order = _layout(name, options).order
    covariances = 1 if options.tied[name] else min(options.max_communities[name], table.n_rows)
    chunks = chunk_bounds(table.indptr, order).size - 1
    return chunks * covariances * order * (order + 1) // 2 * DOUBLE


def _layout(name: str, options: FitOptions) -> Layout:
    return Layout.of(name, n_factors=options.n_factors, offsets=options.offsets)
