"""Compiled programs go into the user's cache folder, unless others can write there or the user has chosen otherwise."""

import os

import jax
import pytest

from fedjax_bal import caches

FOLDER = "jax_compilation_cache_dir"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The user's cache folder, with jax as it is before anything is set."""
    limits = ("jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes")
    names = (FOLDER, "jax_enable_compilation_cache", *limits)
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(FOLDER, None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_folder_that_the_user_has_chosen_stays(home, tmp_path):
    jax.config.update(FOLDER, str(tmp_path / "own"))
    caches.keep_compiled_programs()
    caches.keep_compiled_programs(print)
    assert getattr(jax.config, FOLDER) == str(tmp_path / "own")
    assert not home.exists()


def test_nothing_is_kept_where_jaxs_cache_is_off(home):
    jax.config.update("jax_enable_compilation_cache", False)
    caches.keep_compiled_programs()
    assert getattr(jax.config, FOLDER) is None
    assert not home.exists()


def test_a_folder_that_can_not_be_written_is_tolerated(home):
    home.write_text("a file where the folder would be")
    caches.keep_compiled_programs()
    assert getattr(jax.config, FOLDER) is None


def test_a_folder_of_programs_is_the_users_alone(home):
    before = os.umask(0)
    try:
        folder = caches.cache_folder("xla")
    finally:
        os.umask(before)
    assert folder == home / "fedjax_bal" / "xla"
    assert {place.stat().st_mode & 0o777 for place in (folder.parent, folder)} == {0o700}


@pytest.mark.parametrize("name", ["fedjax_bal", "fedjax_bal/xla"])
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_not_used(home, name, mode):
    caches.cache_folder("xla")
    (home / name).chmod(mode)
    notes = []
    caches.keep_compiled_programs(notes.append)
    assert getattr(jax.config, FOLDER) is None
    assert len(notes) == 1 and f"{home / name}: can be written by other users" in notes[0]


def test_without_a_home_folder_nothing_is_kept_and_none_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(caches.platformdirs, "user_cache_path", _no_home)
    with pytest.raises(OSError, match="no home"):
        caches.cache_folder("xla")
    assert list(tmp_path.iterdir()) == []


def _no_home(*_, **__):
    raise RuntimeError("no home")
