import os

import pytest

import dsgd


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("DSGD_"):
            monkeypatch.delenv(name)


@pytest.fixture
def session():
    """A job of one worker, which needs no network."""
    with dsgd.init() as session:
        yield session
