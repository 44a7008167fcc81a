"""Questions about ids that a model does not know: the likely mistake is named, once."""

from __future__ import annotations

import warnings
from time import perf_counter

import numpy as np
import pytest

from hemf import DataWarning, HeMF, UnknownIdError, UnknownIdWarning
from hemf.data.unknown import close_ids
from hemf.data.vocabulary import Vocabulary
from hemf.evaluation import Prequential

pytestmark = pytest.mark.filterwarnings("ignore::hemf.errors.ConvergenceWarning")

RNG = np.random.default_rng(0)
USERS, ITEMS = RNG.integers(100, 130, 400), RNG.integers(1000, 1020, 400)
STARS = RNG.integers(1, 6, 400)
SMALL = {"n_factors": 2, "max_sweeps": 3, "rng": 0, "duplicates": "mean"}


@pytest.fixture(scope="module")
def numbers() -> HeMF:
    return HeMF(**SMALL).fit((USERS, ITEMS, STARS))


@pytest.fixture(scope="module")
def names() -> HeMF:
    users, items = [f"Zoë {k}" for k in USERS], [f"film {k}" for k in ITEMS]
    return HeMF(**SMALL).fit((users, items, STARS))


def warnings_of(question) -> list[str]:
    """Messages of all warnings of a question, whether they would be shown or not."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        question()
    assert all(issubclass(one.category, UnknownIdWarning) for one in caught)
    assert all(one.filename == __file__ for one in caught)
    return [str(one.message) for one in caught]


TEXT_FOR_NUMBERS = {
    "predict": lambda m: m.predict("113", "1002"),
    "predict many": lambda m: m.predict(["113", "114", "115"], "1002"),
    "predict pairs": lambda m: m.predict([("113", "1002"), ("114", "1003")]),
    "predict and known": lambda m: m.predict("113", "1002", return_known=True),
    "predict_proba": lambda m: m.predict_proba("113", "1002"),
    "recommend": lambda m: m.recommend("113"),
    "recommend many": lambda m: m.recommend(["113", "114", "999"]),
    "explain": lambda m: m.explain("113", "1002"),
    "fold_in": lambda m: m.fold_in([("1002", 3.0), ("1003", 4.0)]),
    "visitor": lambda m: m.fold_in([(1002, 3.0)]).predict(["1003"]),
    "scores": lambda m: m.scores(["113"], ["1002", "1003"]),
}


@pytest.mark.parametrize("question", TEXT_FOR_NUMBERS.values(), ids=TEXT_FOR_NUMBERS.keys())
def test_numbers_given_as_text_are_one_warning(numbers, question):
    (message,) = warnings_of(lambda: question(numbers))
    assert "are numbers here" in message


def test_text_given_as_numbers_or_bytes_is_a_warning():
    model = HeMF(**SMALL).fit((USERS.astype(str), ITEMS.astype(str), STARS))
    assert "are text here" in warnings_of(lambda: model.predict(113, 1002))[0]
    assert "b'113' is bytes" in warnings_of(lambda: model.predict(b"113", "1002"))[0]


def test_swapped_users_and_items_are_a_warning(numbers, names):
    (message,) = warnings_of(lambda: numbers.predict(1002, 113))
    assert "user and item look swapped" in message
    assert (
        "look swapped" in warnings_of(lambda: names.predict(["film 1002"] * 3, ["Zoë 113"] * 3))[0]
    )
    assert "1002 is one of the items" in warnings_of(lambda: numbers.recommend(1002))[0]


def test_a_typo_is_a_warning_with_what_may_be_meant(names):
    (message,) = warnings_of(lambda: names.predict("Zoe 113", "film 1002"))
    assert message.endswith("did you mean 'Zoë 113'?")
    (message,) = warnings_of(lambda: names.explain(" zoë 113", "Flim 1002"))
    assert "did you mean 'Zoë 113'?; did you mean 'film 1002'?" in message


def test_a_stranger_is_no_reason_for_a_warning(numbers, names):
    assert not warnings_of(lambda: numbers.predict(7, 1002))
    assert not warnings_of(lambda: numbers.predict("new", 1002))
    assert not warnings_of(lambda: names.predict("Zoë 7", "film 1002"))
    assert not warnings_of(lambda: names.predict("Carl", "film 1002"))
    assert not warnings_of(lambda: numbers.predict([113, 114, 7], [1002, 1003, 1004]))
    assert not warnings_of(lambda: numbers.recommend(7))
    assert not warnings_of(lambda: numbers.fold_in([(7, 3.0)]))
    assert not warnings_of(lambda: numbers.predict(113, 1002))


def test_many_strangers_alone_are_a_warning_unless_they_are_expected(numbers):
    (message,) = warnings_of(lambda: numbers.predict(list(range(20)), 1002))
    assert "20 of 20 users are not known" in message
    assert not warnings_of(lambda: numbers.predict(list(range(20)), 1002, return_known=True))
    assert not warnings_of(lambda: numbers.predict([*range(20), *USERS[:5]], 1002))


def test_an_error_names_the_mistake_too(numbers):
    with pytest.raises(UnknownIdError, match=r"row 0 .* are numbers here"):
        numbers.predict("113", 1002, unknown="error")


@pytest.mark.parametrize(
    ("text", "known", "expected"),
    [
        ("matrx", ["Matrix", "Alien"], ["Matrix"]),
        ("The  Matrix", ["the matrix"], ["the matrix"]),
        ("cafe\u0301 noir", ["caf\u00e9 noir"], ["caf\u00e9 noir"]),
        ("user 12", ["user 1", "user 11", "user 13"], []),
        ("ann", ["anne", "an"], []),
        ("Alien 3", ["Alien", "Alien 2", "Aliens 3"], ["Aliens 3"]),
        ("", ["a"], []),
        ("x", [], []),
        ("7", [7], []),
    ],
)
def test_ids_are_close_up_to_case_accents_and_typos_but_not_numbers(text, known, expected):
    assert close_ids(text, Vocabulary(known)) == expected


def test_close_ids_among_many_are_found_about_as_fast_as_ids_are_read():
    ids = [f"user {k} of {k % 977}" for k in range(200_000)]
    begin = perf_counter()
    known = Vocabulary(ids)
    known.rows(ids)
    middle = perf_counter()
    assert close_ids("usr 4711 of 803", known) == ["user 4711 of 803"]
    assert perf_counter() - middle < 20 * (middle - begin)


def test_ids_are_searched_a_limited_number_of_times(names):
    known = Vocabulary([f"film {k}" for k in range(50)])
    found = [close_ids("flim 7", known) for _ in range(200)]
    assert found[0] == ["film 7"]
    assert found[-1] == []


@pytest.mark.parametrize("rating", [1.0, 0.1])
def test_equal_ratings_are_a_warning(rating):
    with pytest.warns(DataWarning, match=f"all 40 ratings are {rating:g}, .* clicks"):
        HeMF(**SMALL).fit((np.arange(40) % 9, np.arange(40) % 13, np.full(40, rating)))


def test_newcomers_of_a_stream_are_no_reason_for_a_warning():
    model = HeMF(**SMALL)
    assert not warnings_of(lambda: Prequential(model, USERS, ITEMS, STARS, batch_size=30).run())
    model.partial_fit((USERS, ITEMS, STARS))
    later = Prequential(model, USERS + 900, ITEMS + 900, STARS, batch_size=30)
    assert not warnings_of(later.run)


def test_ids_that_both_sides_share_do_not_look_swapped():
    users, items = np.divmod(np.arange(60), 12)
    model = HeMF(n_factors=1, rng=0).fit((users, items, users + items % 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(8, 3)  # a new user, whose number is that of an item
