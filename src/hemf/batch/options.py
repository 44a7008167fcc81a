"""Options of a batch fit, and when its parts are learnt."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hemf.model.layout import Layout


@dataclass(frozen=True)
class Schedule:
    """When the parts of a model are learnt, in sweeps."""

    warm_up: int = 8
    """Sweeps with one community on each side before any is seeded."""
    hold_scale: int = 3
    """Sweeps before the prior covariances are learnt: directions that die early stay dead."""
    hold_structure: int = 4
    """Sweeps after seeding before λ0, ι0 and W0 are learnt: sooner, communities collapse."""
    hold_noise: int = 10
    """Sweeps before noise scales are learnt: sooner, unlearnt structure passes for noise."""
    hold_mood: int = 10
    """Sweeps before moods are learnt: sooner, unlearnt structure passes for mood."""
    merge_every: int = 3
    """Sweeps between attempts to merge communities."""

    def features_due(self, sweep: int) -> bool:
        """Whether features' precisions are learnt: less and less often, to save time.

        >>> [sweep for sweep in range(60) if Schedule().features_due(sweep)]
        [3, 5, 8, 13, 21, 34, 54]
        """
        due = self.hold_scale
        while due < sweep:
            due += max(1, round(0.6 * due))
        return due == sweep

    def earliest(self, *, seeds: bool, scales: bool, moods: bool = False) -> int:
        """First sweep that can converge: before it, parts of the model are held."""
        held = [self.hold_scale]
        if seeds:
            held.append(self.warm_up + self.hold_structure + 2)
        if scales:
            held.append(self.hold_noise + 2)
        if moods:
            held.append(self.hold_mood + 2)
        return max(held)


@dataclass(frozen=True)
class FitOptions:
    """Options of a fit; `hemf.HeMF` documents each."""

    n_factors: int
    offsets: bool
    max_communities: dict[str, int]
    tied: dict[str, bool]
    coupled: bool
    noise_scales: dict[str, bool]
    evb: str | None
    concentration: float
    spread: float
    max_sweeps: int
    tolerance: float
    patience: int
    n_jobs: int | None
    dtype: type[np.floating]
    moods: bool = False
    implicit_features: tuple[str, ...] = ()
    """Sides with features made of their ratings."""
    duplicates: str = "last"
    """What to do with a pair rated twice."""
    rating_range: str | tuple[float, float] | None = "observed"
    """Range that predictions are clipped to."""
    validation_fraction: float = 0.0
    """Share of the ratings to hold out."""
    schedule: Schedule = field(default_factory=Schedule)

    def layout(self, side: str) -> Layout:
        """Return the layout of a side's vectors."""
        return Layout.of(side, n_factors=self.n_factors, offsets=self.offsets)

    @property
    def seeds(self) -> bool:
        """Whether any side may have several communities."""
        return max(self.max_communities.values()) > 1

    @property
    def earliest(self) -> int:
        """First sweep that can converge."""
        scales = any(self.noise_scales.values())
        return self.schedule.earliest(seeds=self.seeds, scales=scales, moods=self.moods)
