"""Files of what is known of users and items: ``--user-features`` and ``--item-features``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hemf.cli import arguments
from hemf.cli.standard import READ

if TYPE_CHECKING:
    from hemf import Ratings
    from hemf.cli.output import Output

_HELP = "File of what is known of {side}s: ids (as in the ratings, or first) and other columns."

UserFeatures = Annotated[
    list[Path] | None,
    typer.Option("--user-features", metavar="FILE", help=_HELP.format(side="user")),
    READ,
]
ItemFeatures = Annotated[
    list[Path] | None,
    typer.Option("--item-features", metavar="FILE", help=_HELP.format(side="item")),
    READ,
]


def read_features(
    output: Output,
    ratings: Ratings,
    columns: str | None,
    *,
    user: list[Path] | None,
    item: list[Path] | None,
    learning: bool = True,
) -> dict[str, Any]:
    """Return ``user_features`` and ``item_features`` as the model takes them; none where not given.

    ``ratings`` tell what kind of ids there are, and ``columns`` what they may be called. Where
    their meaning is to be learnt, names such as titles are left out.
    """
    from hemf.features.files import read_feature_file, without_names

    chosen = arguments.parse_columns(columns) or (None, None)
    sides = {"user": (user, ratings.users, chosen[0]), "item": (item, ratings.items, chosen[1])}
    features: dict[str, Any] = {}
    for side, (files, known, column) in sides.items():
        for path in files or ():
            with output.status(f"reading {path}"):
                table = read_feature_file(path, side, known=known, column=column)
            if learning:
                table, left_out = without_names(table)
                for name in left_out:
                    output.remark(f"{path}: {name} is another in every row, and is left out")
            features.setdefault(f"{side}_features", []).append(table)
    return features
