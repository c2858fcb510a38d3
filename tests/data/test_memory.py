"""The memory that is free, and what the limit of a container leaves."""

import os

import pytest

from fedjax_bal.data import DataError, available_bytes, memory

GIB = 2**30
UNLIMITED = 9223372036854771712  # what version 1 writes for no limit


def tree(root, files):
    """Writes files below a folder; returns the folder."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def machine(free, cgroup=None):
    """The files of a machine with so many bytes free, and of a process in a control group."""
    files = {"proc/meminfo": f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {free // 1024} kB"}
    return files | ({} if cgroup is None else {"proc/self/cgroup": cgroup})


def v2(folder, limit, usage, cached=0):
    """The files of a control group of version 2."""
    place = f"sys/fs/cgroup/{folder}".rstrip("/")
    stat = f"anon 5\ninactive_file {cached}\nactive_file 7"
    return {f"{place}/memory.max": limit, f"{place}/memory.current": usage, f"{place}/memory.stat": stat}


def v1(folder, limit, usage, cached=0):
    """The files of a control group of version 1."""
    place = f"sys/fs/cgroup/memory/{folder}".rstrip("/")
    stat = f"inactive_file 3\ntotal_inactive_file {cached}"
    files = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": usage, "memory.stat": stat}
    return {f"{place}/{name}": text for name, text in files.items()}


OF_VERSION_1 = "5:cpu:/x\n4:devices,memory:/docker/abc\n0::/"
CASES = {
    "no group": (machine(9 * GIB), 9 * GIB),
    "no limit": (machine(9 * GIB, "0::/") | v2("", "max", GIB), 9 * GIB),
    "a container of 8 GiB": (machine(40 * GIB, "0::/") | v2("", 8 * GIB, 3 * GIB), 5 * GIB),
    "cached files can be dropped": (machine(40 * GIB, "0::/") | v2("", 8 * GIB, 3 * GIB, GIB), 6 * GIB),
    "less is free than allowed": (machine(2 * GIB, "0::/") | v2("", 8 * GIB, GIB), 2 * GIB),
    "more is used than allowed": (machine(9 * GIB, "0::/") | v2("", GIB, 2 * GIB), 0),
    "a group within a limited one": (
        machine(40 * GIB, "0::/a/b") | v2("a/b", "max", GIB) | v2("a", 4 * GIB, 2 * GIB),
        2 * GIB,
    ),
    "the path of the host": (machine(40 * GIB, "0::/kubepods/pod1") | v2("", 8 * GIB, GIB), 7 * GIB),
    "a path outside": (machine(40 * GIB, "0::/../other") | v2("", 8 * GIB, GIB), 7 * GIB),
    "version 1": (machine(40 * GIB, OF_VERSION_1) | v1("docker/abc", 8 * GIB, 3 * GIB, GIB), 6 * GIB),
    "version 1 in a container": (machine(40 * GIB, OF_VERSION_1) | v1("", 8 * GIB, 3 * GIB), 5 * GIB),
    "version 1 without a limit": (machine(9 * GIB, OF_VERSION_1) | v1("docker/abc", UNLIMITED, GIB), 9 * GIB),
    "damaged files": (machine(9 * GIB, "0::/\nnonsense") | v2("", "x", "y"), 9 * GIB),
}


@pytest.mark.parametrize("case", CASES)
def test_the_limits_of_control_groups_are_kept(tmp_path, case):
    files, left = CASES[case]
    assert available_bytes(tree(tmp_path, files)) == left


def test_without_the_systems_word_all_memory_counts_as_free(tmp_path):
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available_bytes(tmp_path) == whole
    files = {"proc/self/cgroup": "0::/"} | v2("", whole // 2, 0)
    assert available_bytes(tree(tmp_path, files)) == whole // 2


def test_what_is_too_large_for_a_container_is_refused(tmp_path, monkeypatch):
    root = tree(tmp_path, machine(40 * GIB, "0::/") | v2("", 8 * GIB, GIB))
    monkeypatch.setattr(memory, "available_bytes", lambda: available_bytes(root))
    memory.check_memory("images need", 7 * GIB)
    with pytest.raises(DataError, match=r"images need 7.5 GiB, but only 7.0 GiB of memory are available"):
        memory.check_memory("images need", 15 * GIB // 2)
