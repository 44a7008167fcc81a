"""``hemf describe``: the content of a model file."""

from __future__ import annotations

from hemf._files import expand_home
from hemf.cli import arguments
from hemf.cli.output import Document, Output

SHOWN = 5  # batches, in a table


def describe(output: Output, model_file: arguments.Model) -> None:
    """Show what is in a model file.

    This includes the last 1,000 batches that `hemf update` has applied since the fit.
    """
    from hemf.persistence.model import read_versions

    model = output.load_model(model_file)
    document = {
        "model": output.named(str(model_file)),
        "bytes": expand_home(model_file).stat().st_size,
        **read_versions(model_file),
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


def _show(output: Output, facts: Document) -> None:
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
