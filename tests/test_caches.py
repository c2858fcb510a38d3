"""Compiled programs go into the user's cache folder, unless it can't be written or the user has chosen otherwise."""

import os
import subprocess
import sys
import warnings

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


def test_the_library_keeps_programs_in_the_users_cache_folder(home):
    caches.keep_compiled_programs_by_default()
    assert getattr(jax.config, FOLDER) == str(home / "fedjax_bal" / "xla")
    assert (home / "fedjax_bal" / "xla").is_dir()


def test_a_folder_that_the_user_has_chosen_stays(home, tmp_path):
    jax.config.update(FOLDER, str(tmp_path / "own"))
    caches.keep_compiled_programs_by_default()
    caches.keep_compiled_programs(print)
    assert getattr(jax.config, FOLDER) == str(tmp_path / "own")
    assert not home.exists()


def test_nothing_is_kept_where_jaxs_cache_is_off(home):
    jax.config.update("jax_enable_compilation_cache", False)
    caches.keep_compiled_programs_by_default()
    assert getattr(jax.config, FOLDER) is None
    assert not home.exists()


def test_a_folder_that_can_not_be_written_is_tolerated(home):
    home.write_text("a file where the folder would be")
    caches.keep_compiled_programs_by_default()
    assert getattr(jax.config, FOLDER) is None


def test_a_program_that_can_not_be_read_is_removed_so_that_it_is_written_again(tmp_path):
    for name in ("jit_step-12ab-cache", "jit_step_more-34cd-cache", "jit_stop-56ef-cache"):
        (tmp_path / name).write_text("cut off")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        shown = []
        warnings.showwarning = lambda message, *_: shown.append(str(message))
        caches._replace_unreadable_programs.__wrapped__(tmp_path)
        warnings.warn("Error reading persistent compilation cache entry for 'jit_step': error: -5", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert shown == ["something else"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["jit_step_more-34cd-cache", "jit_stop-56ef-cache"]


@pytest.mark.slow
@pytest.mark.parametrize("backend, used", [("inline_that_is_nowhere", False), ("pdf", True)])
def test_a_backend_that_matplotlib_lacks_costs_no_page(backend, used):
    code = """
from fedjax_bal.caches import drawing
with drawing():
    from fedjax_bal.report import svg
import matplotlib
print(matplotlib.rcParams["backend"])
"""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"MPLBACKEND": backend})
    assert done.returncode == 0 and (done.stdout == f"{backend}\n") == used, done.stderr
