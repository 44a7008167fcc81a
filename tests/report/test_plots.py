"""Pictures show what they are given, with words and units, and leave no trace behind."""

from __future__ import annotations

import io

import matplotlib
import numpy as np
import pytest

from hemf.batch.callbacks import SweepReport
from hemf.evaluation import calibration_curve
from hemf.report import plots

TERMS = ("ratings", "user factors", "item factors", "user sticks", "item sticks")


def history(n: int, held_out: bool = False) -> list[SweepReport]:
    return [
        SweepReport(
            sweep=k,
            max_sweeps=n,
            elbo=-2e6 / k,
            elbo_terms={term: -(10.0**place) / k for place, term in enumerate(TERMS)},
            train_rmse=1 + 1 / k,
            validation_rmse=1.2 + 1 / k if held_out else None,
            user_communities=min(k, 4),
            item_communities=3,
            noise_variance=1.0,
            seconds=k / 10,
        )
        for k in range(1, n + 1)
    ]


def every_figure():
    curve = calibration_curve([0.0, 1.0, 2.0], mean=[0.5, 0.5, 0.5], std=[1.0, 1.0, 1.0])
    return {
        "elbo": plots.elbo(history(30)),
        "elbo_terms": plots.elbo_terms(history(30)),
        "rmse": plots.rmse(history(30, held_out=True)),
        "active_communities": plots.active_communities(history(30)),
        "bicluster_map": plots.bicluster_map(np.eye(3), np.ones((3, 3))),
        "community_sizes": plots.community_sizes([5, 3], [4]),
        "calibration": plots.calibration(curve, 3),
    }


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize(("name", "figure"), every_figure().items())
def test_every_figure_can_be_saved_and_says_what_its_axes_are(name, figure):
    figure.savefig(io.BytesIO(), format="png")
    labels = [figure.get_supxlabel(), figure.get_supylabel()]
    for axes in figure.axes:
        labels += [axes.get_xlabel(), axes.get_ylabel()]
    assert len([label for label in labels if label]) >= 2, name


def test_drawing_changes_no_setting_and_registers_no_figure():
    before = dict(matplotlib.rcParams)
    every_figure()
    assert dict(matplotlib.rcParams) == before
    from matplotlib import _pylab_helpers

    assert not _pylab_helpers.Gcf.figs


def test_pictures_of_the_bound_begin_after_its_first_leap():
    (line,) = plots.elbo(history(30)).axes[0].lines
    assert line.get_xdata()[0] == plots.SKIPPED + 1
    np.testing.assert_allclose(line.get_ydata(), [-2e6 / k for k in range(3, 31)])


def test_a_short_history_is_shown_whole():
    (line,) = plots.elbo(history(1)).axes[0].lines
    assert line.get_marker() == "o"  # a line of one point would not be seen
    assert len(line.get_xdata()) == 1


def test_the_terms_of_both_sides_share_a_panel():
    figure = plots.elbo_terms(history(30))
    assert [axes.get_title("left") for axes in figure.axes] == ["ratings", "factors", "sticks"]
    assert [len(axes.lines) for axes in figure.axes] == [1, 2, 2]
    # Each panel spans its own values, however different their sizes.
    for axes in figure.axes:
        low, high = axes.get_ylim()
        values = np.concatenate([line.get_ydata() for line in axes.lines])
        assert high - low < 1.5 * np.ptp(values)


def test_held_out_error_is_drawn_by_sweep_or_as_a_level():
    assert len(plots.rmse(history(9)).axes[0].lines) == 1
    by_sweep = plots.rmse(history(9, held_out=True)).axes[0].lines
    assert by_sweep[1].get_ydata()[-1] == pytest.approx(1.2 + 1 / 9)
    level = plots.rmse(history(9), held_out=1.5).axes[0].lines
    assert list(level[1].get_ydata()) == [1.5, 1.5]


def test_biclusters_show_rating_and_size_and_where_there_is_none():
    figure = plots.bicluster_map([[4.25, np.nan]], [[12_345, 0]])
    assert texts(figure) == ["4.25", "12,345", "none"]


def test_biclusters_of_equal_ratings_have_a_scale():
    plots.bicluster_map([[3.0]], [[7]]).savefig(io.BytesIO(), format="svg")


def test_many_biclusters_are_shown_without_figures():
    assert texts(plots.bicluster_map(np.ones((30, 30)), np.ones((30, 30)))) == []


def test_calibration_draws_percent_against_percent():
    rng = np.random.default_rng(0)
    curve = calibration_curve(rng.normal(size=400), mean=np.zeros(400), std=np.ones(400))
    _, observed = plots.calibration(curve, 400).axes[0].lines
    np.testing.assert_allclose(observed.get_xdata(), 100 * curve.nominal)
    np.testing.assert_allclose(observed.get_ydata(), 100 * curve.observed)
