"""How to learn online."""

from __future__ import annotations

from dataclasses import dataclass, field

ALL = -1  # window: every rating is kept
MOST_PARTS = 4  # communities that a row can belong to at once, its likeliest ones
LEAST_SHARE = 1e-6  # of a row; communities with less are left out


@dataclass(frozen=True)
class OnlineOptions:
    """How to learn online; `hemf.HeMF` documents each."""

    window: int = ALL
    """Ratings kept of each row; the others are summed up."""
    counts_repeats: bool = False
    """Whether another rating of a pair counts beside the earlier ones instead of replacing them."""
    buffer: int = 0
    """Ratings that are all kept at first, whatever ``window`` is."""
    forgetting: dict[str, float] = field(default_factory=lambda: {"user": 1.0, "item": 1.0})
    evb: str | None = "closed"
    max_communities: dict[str, int | None] = field(
        default_factory=lambda: {"user": None, "item": None}
    )
    thorough: bool = False
    """Weigh every community at every refresh, and leave none out: for proofs."""
    least_share: float = LEAST_SHARE
    most_parts: int = MOST_PARTS
    refresh: float = 0.0
    """Rows with the oldest information that are refreshed too, for each rating learnt."""
    duplicates: str = "last"
    """What to do with a pair rated twice in one batch."""
    rating_range: str | tuple[float, float] | None = "observed"
    """Range that predictions are clipped to."""

    @property
    def declared_range(self) -> tuple[float, float] | None:
        """The rating range where it was declared as two numbers."""
        return self.rating_range if isinstance(self.rating_range, tuple) else None
