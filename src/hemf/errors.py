"""Everything hemf raises or warns with.

Each error says what was wrong, where, and what to do about it.
"""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from typing import Self, TypeVar

PACKAGE = os.path.dirname(__file__) + os.sep
_NOT_CALLERS = PACKAGE, os.path.dirname(logging.__file__) + os.sep
_LONGEST_MESSAGE = 1000
_END = 300  # characters of a longer message that are kept from its end


class HemfError(Exception):
    """Base of every error that hemf raises on purpose.

    ``value`` is the offending value and ``row`` its position in the input, where there is one. A
    message of more than 1,000 characters, such as one that quotes a very long id, is cut in the
    middle; ``value`` is never cut.

    >>> HemfError("rating is not a number", value="x", row=3).row
    3
    >>> len(str(HemfError("user " + "x" * 1_000_000 + " is not known")))
    1000
    """

    def __init__(self, message: str, *, value: object = None, row: int | None = None) -> None:
        super().__init__(shorten(message))
        self.value = value
        self.row = row

    def inside(self, where: str) -> Self:
        """Return the same error with the place in front, unless it is there already."""
        if str(self).startswith(where):
            return self
        return type(self)(f"{where}: {self}", value=self.value, row=self.row)


def shorten(message: str) -> str:
    """Cut a very long message in the middle, where ids and values are."""
    if len(message) <= _LONGEST_MESSAGE:
        return message
    left_out = " … (cut) … "
    begin = _LONGEST_MESSAGE - _END - len(left_out)
    return message[:begin] + left_out + message[-_END:]


class DataError(HemfError, ValueError):
    """Ratings, pairs or features that cannot be used."""


class ParameterError(HemfError, ValueError):
    """A parameter of an estimator or a command is out of range."""


class UnknownIdError(HemfError, KeyError):
    """A user or item is not known to the model, and ``unknown="error"``."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the message's repr


class NotFittedError(HemfError, ValueError, AttributeError):
    """The model is not fitted yet."""


class BusyError(HemfError, RuntimeError):
    """A signal handler copied or saved a model during an update."""


class ModelFileError(HemfError, OSError):
    """A model file is damaged, truncated, of another kind, or newer than this reader."""


class DatasetError(HemfError, OSError):
    """A data set could not be fetched, verified or read."""


E = TypeVar("E", bound=HemfError)


def row_error(what: str, value: object, row: int, reason: str, kind: type[E] = DataError) -> E:  # type: ignore[assignment]
    """Return the error for a value that cannot be used.

    >>> row_error("rating", "good", 3, "is not a number")
    DataError("rating 'good' at row 3 is not a number")
    """
    return kind(f"{what} {value!r} at row {row} {reason}", value=value, row=row)


def file_error(path: str | os.PathLike[str], problem: str) -> ModelFileError:
    """Return the error for a file that cannot be read or written.

    >>> file_error("m.hemf", "is a directory")
    ModelFileError('m.hemf is a directory')
    """
    return ModelFileError(f"{path} {problem}", value=str(path))


class HemfWarning(UserWarning):
    """Base of every warning that hemf gives on purpose."""


class ConvergenceWarning(HemfWarning):
    """The maximum number of sweeps was reached before convergence."""


class DuplicateWarning(HemfWarning):
    """The same pair was rated more than once; the last rating was kept."""


class DataWarning(HemfWarning):
    """The data can be used, but are probably not as intended."""


class UnknownIdWarning(HemfWarning):
    """Most ids of a call are not known to the model, probably by mistake."""


class DatasetWarning(HemfWarning):
    """A data set is not complete."""


class HistoryWarning(HemfWarning):
    """A result needs ratings that the model does not keep."""


class OutlierWarning(DataWarning):
    """A rating far outside all previous ones: a typing error, or another scale."""


class CacheWarning(HemfWarning):
    """Compiled kernels cannot be written to any cache, and are compiled in every process."""


class StreamWarning(HemfWarning):
    """Predictions of the streamed ratings have become much worse."""


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line outside hemf that called into it."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_CALLERS):
        frame, level = frame.f_back, level + 1
    warnings.warn(shorten(message), category, stacklevel=level)


class KernelWarnings(logging.Handler):
    """Gives what kernels log as a `CacheWarning`: they import nothing of hemf but each other."""

    def emit(self, record: logging.LogRecord) -> None:
        """Warn at the line outside hemf that called into it."""
        warn_caller(record.getMessage(), CacheWarning)
