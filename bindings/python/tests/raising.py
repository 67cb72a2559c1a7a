"""pytest.raises for errors that are told apart by their status."""

import contextlib

import pytest

import dsgd


@contextlib.contextmanager
def raises(*statuses, match=None):
    with pytest.raises(dsgd.Error, match=match) as caught:
        yield caught
    assert caught.value.status in statuses, repr(caught.value)
