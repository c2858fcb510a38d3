"""Compiled programs go into the user's cache folder, unless others can write there or the user has chosen otherwise."""

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
    caches.keep_compiled_programs()
    assert getattr(jax.config, FOLDER) == str(home / "fedjax_bal" / "xla")
    assert (home / "fedjax_bal" / "xla").is_dir()


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
    assert {place.stat().st_mode & 0o777 for place in (home, folder.parent, folder)} == {0o700}


@pytest.mark.parametrize("name", ["fedjax_bal", "fedjax_bal/xla"])
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_not_used(home, name, mode):
    caches.cache_folder("xla")
    (home / name).chmod(mode)
    notes = []
    caches.keep_compiled_programs(notes.append)
    assert getattr(jax.config, FOLDER) is None
    assert len(notes) == 1 and f"{home / name}: can be written by other users: chmod go-w" in notes[0]


def test_a_folder_of_another_user_is_not_used(home, monkeypatch):
    caches.cache_folder("xla")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="belongs to another user"):
        caches.cache_folder("xla")


def test_a_relative_place_of_caches_is_ignored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert caches.cache_folder("xla") == tmp_path / "home" / ".cache" / "fedjax_bal" / "xla"
    assert not (tmp_path / "relative").exists()


@pytest.mark.parametrize("home", ["~", "relative"])
def test_without_a_home_folder_none_is_made_in_the_working_directory(tmp_path, monkeypatch, home):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    with pytest.raises(OSError, match="set HOME or XDG_CACHE_HOME"):
        caches.cache_folder("xla")
    with caches.drawing():
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", [".config/matplotlib", "settings/matplotlib"])
def test_the_user_s_matplotlib_settings_are_read_beside_another_cache_folder(tmp_path, monkeypatch, folder):
    monkeypatch.setattr(caches.sys, "platform", "linux")
    variables = {"HOME": str(tmp_path)} | (
        {"XDG_CONFIG_HOME": str(tmp_path / "settings")} if "settings" in folder else {}
    )
    file = tmp_path / folder / "matplotlibrc"
    for given, wanted in (({}, None), ({}, str(file)), ({"MATPLOTLIBRC": "a"}, "a"), ({"MPLCONFIGDIR": "b"}, None)):
        monkeypatch.setattr(os, "environ", variables | given)
        with caches.drawing():
            assert os.environ.get("MATPLOTLIBRC") == wanted
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("font.family: STIXGeneral")


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
    from fedjax_bal.report import plots
import matplotlib
print(matplotlib.rcParams["backend"])
"""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"MPLBACKEND": backend})
    assert done.returncode == 0 and (done.stdout == f"{backend}\n") == used, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [False, True])
def test_a_cache_with_a_size_limit_keeps_programs_beside_some_without_a_time_of_use(home, tmp_path, chosen):
    folder = tmp_path / "chosen" if chosen else home / "fedjax_bal" / "xla"
    folder.mkdir(0o700, parents=True)
    for parent in folder.parents[:2]:
        parent.chmod(0o700)
    for name in ("x-cache", "y-cache", "y-atime"):
        (folder / name).write_bytes(bytes(8))
    cache = str(folder) if chosen else None
    run = "import jax, jax.numpy as jnp; from fedjax_bal import caches; caches.keep_compiled_programs();"
    run += "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0);"
    run += "print(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((3, 3))).shape)"
    limits = {"JAX_COMPILATION_CACHE_MAX_SIZE": "1000000000", "JAX_ENABLE_COMPILATION_CACHE": "true"}
    limits |= {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0"}
    surroundings = {**os.environ, **limits, **({"JAX_COMPILATION_CACHE_DIR": cache} if cache else {})}
    ended = subprocess.run([sys.executable, "-c", run], env=surroundings, capture_output=True, text=True, check=True)
    assert "Error writing" not in ended.stderr
    programs = {file.name.removesuffix("-cache") for file in folder.glob("*-cache")}
    assert programs > {"x", "y"} and programs == {file.name.removesuffix("-atime") for file in folder.glob("*-atime")}
