"""Files are written whole, in place of files alone, by several processes at once, on file systems of all kinds."""

import errno
import os
import socket
import stat
import threading
import time

import pytest

from fedjax_bal import files
from fedjax_bal.files import own_folder, replacing, write_atomically


def test_two_writers_of_a_file_do_not_disturb_each_other(tmp_path):
    file = tmp_path / "page"
    with replacing(file) as first:
        first.write(b"first, ")
        write_atomically(file, b"second")
        assert file.read_bytes() == b"second"
        first.write(b"whole")
    assert file.read_bytes() == b"first, whole"
    assert [own.name for own in tmp_path.iterdir()] == ["page"]


def test_readers_of_a_file_that_many_write_see_whole_contents_only(tmp_path):
    file, errors = tmp_path / "page", []
    contents = [bytes([number]) * 50_000 for number in range(8)]
    write_atomically(file, contents[0])

    def write(content):
        try:
            for _ in range(5):
                write_atomically(file, content)
        except OSError as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert file.read_bytes() in contents
    assert errors == [] and [own.name for own in tmp_path.iterdir()] == ["page"]


def test_what_killed_writers_left_is_removed_once_it_is_old(tmp_path):
    old, new, other = (tmp_path / name for name in (".[x].1a2b3c4d.part", ".[x].5e6f7a8b.part", ".y.1a2b3c4d.part"))
    for left in (old, new, other):
        left.write_bytes(b"half")
    for left in (old, other):
        os.utime(left, (time.time() - 2 * files._ABANDONED_S,) * 2)
    write_atomically(tmp_path / "[x]", b"whole")
    assert {own.name for own in tmp_path.iterdir()} == {"[x]", new.name, other.name}


def test_no_file_takes_the_place_of_a_device_a_pipe_a_socket_or_a_stream(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "linked").symlink_to("/dev/null")
    (tmp_path / "stream").symlink_to("/proc/self/fd/1")
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "socket"))
    entries = lambda: {own.name: (own.lstat().st_ino, own.lstat().st_mtime_ns) for own in tmp_path.iterdir()}
    before = entries()  # without the time of access, which following a link changes
    for name, what in (("pipe", "a pipe"), ("linked", "a device"), ("stream", "a stream"), ("socket", "a socket")):
        with pytest.raises(OSError, match=f"is {what}.*give the name of a file") as caught:
            write_atomically(tmp_path / name, b"1")
        assert caught.value.filename == str(tmp_path / name)
    assert entries() == before


def test_a_link_to_a_file_is_replaced_and_the_file_behind_it_stays(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "link").symlink_to("precious")
    (tmp_path / "dangling").symlink_to("nothing")
    for name in ("link", "dangling"):
        write_atomically(tmp_path / name, b"new")
        assert (tmp_path / name).read_bytes() == b"new" and not (tmp_path / name).is_symlink()
    assert (tmp_path / "precious").read_text() == "mine" and not (tmp_path / "nothing").exists()


def test_no_part_of_a_folder_inside_may_be_a_link(tmp_path):
    (tmp_path / "outside").mkdir()
    assert own_folder(tmp_path, "a/b/c").is_dir()
    (tmp_path / "a" / "out").symlink_to(tmp_path / "outside")
    for name in ("a/out", "a/out/c"):
        with pytest.raises(OSError, match="out is a link"):
            own_folder(tmp_path, name)
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EIO])
def test_a_file_system_need_not_bring_folders_to_disk(tmp_path, monkeypatch, code):
    sync = os.fsync

    def refuse(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        sync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    if code == errno.EIO:  # a disk that fails is no matter of what it can
        with pytest.raises(OSError, match="Input/output error"):
            write_atomically(tmp_path / "file", b"1")
    else:
        write_atomically(tmp_path / "file", b"1")
    assert (tmp_path / "file").read_bytes() == b"1"


def test_only_regular_files_are_opened_and_none_is_read_beyond_its_limit(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in ((tmp_path / "pipe", "is a pipe"), ("/dev/zero", "is a device"), (tmp_path, "is a directory")):
        with pytest.raises(OSError, match=message):
            files.open_file(path)
    with pytest.raises(OSError, match="null"):
        files.open_file("a\0b")
    (tmp_path / "file").write_bytes(b"12345")
    assert files.read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="is longer than 4 bytes"):
        files.read_bytes(tmp_path / "file", 4)
