"""Places other than folders: whatever fsspec can open, written whole or not at all."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from objects import object_store
from plrp import cli
from plrp.experiments import Bucket, DiskFull, Folder, Results, RunError, Store, sweep
from plrp.experiments.store import LAYOUT
from plrp.runs.places import place_at
from worlds import made_part, plain_world, same


@pytest.fixture(params=["memory", "objects", "local", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a run may be; `file` is forced through fsspec too."""
    if request.param == "objects":
        with object_store() as bucket:
            yield f"{bucket}/run"
    elif request.param == "memory":
        yield f"memory://{tmp_path.name}/run"
        MemoryFileSystem.store.clear()
    else:
        yield f"{request.param}://{tmp_path}/run"


def test_bytes_are_kept_listed_and_forgotten(url: str) -> None:
    place = Bucket(url)
    assert place.names() == place.names("parts") == []
    assert not place.exists("config.toml")
    with pytest.raises(FileNotFoundError):
        place.read("config.toml")
    place.write("parts/b", b"2")
    place.write("parts/a", b"1")
    place.write("config.toml", b"old")
    place.write("config.toml", b"new")
    assert place.names("parts") == ["parts/a", "parts/b"]
    assert place.names() == ["config.toml"]
    assert (place.read("config.toml"), place.read("parts/b")) == (b"new", b"2")
    assert place.exists("parts/a")
    assert not place.exists("parts")  # a folder is nothing that was written
    place.remove("parts/a")
    place.remove("parts/a")
    assert Bucket(url).names("parts") == ["parts/b"]
    assert str(place) == url


def test_files_are_kept_from_a_path_when_the_block_ends_well(url: str) -> None:
    place = Bucket(url)

    def write(content: bytes, ends_well: bool) -> None:
        with place.new_file("sub/table.parquet") as path:
            assert path.suffix == ".parquet"
            path.write_bytes(content)
            assert ends_well

    write(b"old", True)
    write(b"new", True)
    with pytest.raises(AssertionError):
        write(b"ha", False)
    assert place.read("sub/table.parquet") == b"new"
    assert place.names("sub") == ["sub/table.parquet"]


def test_a_sweep_into_a_url_and_out_of_it(url: str, tmp_path: Path) -> None:
    config = plain_world(tmp_path / "world", 4)
    local = sweep(config, tmp_path / "local", workers=1)
    there = sweep(config, Bucket(url), workers=1)
    same(local, there)
    removed = there.store.place.names("parts")[1]
    content = there.store.place.read(removed)
    there.store.place.write(removed, content[: len(content) // 2])
    assert Results.load(Bucket(url)).missing == [1]
    said: list[str] = []
    same(local, sweep(config, Bucket(url), workers=1, say=said.append))
    assert said[0] == f"{removed} was damaged and will be made again"
    with pytest.raises(RunError, match="holds results of another run"):
        sweep(config.changed(composite="epsilon"), Bucket(url), workers=1)


def test_a_writer_cut_off_leaves_the_old_content_and_is_tidied_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where content is written beside its place and moved there."""
    place = Bucket(f"local://{tmp_path}/run")
    place.write("config.toml", b"old content")
    put = LocalFileSystem.pipe_file

    class Cut(BaseException):
        """Stands for a kill."""

    def half(self: Any, path: str, value: bytes, **options: Any) -> None:
        put(self, path, value[: len(value) // 2], **options)
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "pipe_file", half)
        patched.setattr(LocalFileSystem, "rm_file", lambda self, path: None)  # the killed tidy nothing up
        with pytest.raises(Cut):
            place.write("config.toml", b"new content")
    assert place.read("config.toml") == b"old content"
    assert place.names() == ["config.toml"]
    assert len(list((tmp_path / "run").iterdir())) == 2
    place.tidy(LAYOUT.folders, LAYOUT.owns)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.toml"]


def test_a_full_place_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, path: str, value: bytes, **_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", full)
    with pytest.raises(DiskFull, match=r"no space left for memory://full/a \(3 bytes\)"):
        Bucket("memory://full").write("a", b"abc")


def test_places_by_name(tmp_path: Path) -> None:
    assert isinstance(place_at("s"), Folder)
    assert isinstance(place_at(tmp_path), Folder)
    assert str(place_at(f"file://{tmp_path}")) == str(tmp_path)  # our own access: locks, and on the disk when written
    assert isinstance(place_at("memory://x"), Bucket)
    assert place_at("memory://x").private
    assert not place_at(f"local://{tmp_path}").private
    with pytest.raises(RunError, match="nosuch://x cannot be opened"):
        place_at("nosuch://x")


def test_the_memory_of_a_process_is_not_shared_with_others(tmp_path: Path) -> None:
    """Two workers are asked for: they would write into memories of their own."""
    there = sweep(plain_world(tmp_path / "world", 3), f"memory://{tmp_path.name}", workers=2)
    assert there.complete


def test_a_run_is_taken_up_by_its_url_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").write_text(plain_world(tmp_path / "world", 4).to_toml())
    url = f"local://{tmp_path}/run"
    assert cli.main(["sweep", str(tmp_path / "run.toml"), "--out", url, "--limit", "2", "--workers", "1"]) == 0
    assert cli.main(["sweep", url, "--limit", "4", "--workers", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith(f"{url}: 4 samples")
    assert "2 of 4 parts to do" in err
    assert Results.load(url).complete
    assert cli.main(["sweep", f"local://{tmp_path}/none"]) == 2
    assert "is not a run: it has no config.toml" in capsys.readouterr().err


def test_a_part_put_twice_is_one_part(tmp_path: Path) -> None:
    config = plain_world(tmp_path / "world", 3).changed(**{"data.count": 3, "data.digest": "d", "model.digest": "m"})
    store = Store(f"memory://{tmp_path.name}")
    store.begin(config)
    for _ in range(2):
        store.put(config, 1, made_part(config, 1))
    assert len(store.place.names("parts")) == 1
