"""``hemf describe``: what is in a model file."""

from __future__ import annotations

from typing import Any

from hemf.cli import arguments
from hemf.cli.output import Output

SHOWN = 5  # batches, for people


def describe(output: Output, model_file: arguments.Model) -> None:
    """Say what is in a model file, and which batches it has learnt.

    The batches are those that `hemf update` has applied since the fit, the last 1,000 of them.
    """
    from hemf import HeMF
    from hemf.io import read_versions

    with output.status(f"reading {model_file}"):
        model = HeMF.load(model_file)
        versions = read_versions(model_file)
    document = {
        "model": output.named(str(model_file)),
        "bytes": model_file.expanduser().stat().st_size,
        **versions,
        "users": model.n_users_,
        "items": model.n_items_,
        "ratings": model.n_ratings_,
        "factors": model.n_factors,
        "user_communities": model.n_user_communities_,
        "item_communities": model.n_item_communities_,
        "noise_std": model.noise_variance_**0.5,
        "sweeps": model.n_sweeps_,
        "converged": model.converged_,
        "history": model.history,
        "online": model.is_online_,
        "batches": [batch._asdict() for batch in model.batches_],
    }
    output.result(document, lambda: _show(output, document))


def _show(output: Output, facts: dict[str, Any]) -> None:
    output.line(facts["model"], style="bold")
    output.line(
        f"{facts['bytes'] / 1e6:,.1f} MB, format {facts['format_version']}, written by hemf "
        f"{facts['library_version']}"
    )
    output.line(
        f"{facts['ratings']:,} ratings of {facts['items']:,} items by {facts['users']:,} users"
    )
    output.line(
        f"{facts['user_communities']} user × {facts['item_communities']} item communities, "
        f"{facts['factors']} factors, noise ±{facts['noise_std']:.3g}"
    )
    how = "learns online" if facts["online"] else "fitted in batch"
    output.line(f"{facts['sweeps']:,} sweeps, {how}, history {facts['history']}")
    batches = facts["batches"]
    if not batches:
        output.line("no batches applied by hemf update")
        return
    output.line(f"{len(batches):,} batches applied by hemf update; the last ones:")
    for batch in batches[-SHOWN:]:
        output.line(f"  {batch['id']}  {batch['ratings']:,} ratings")
