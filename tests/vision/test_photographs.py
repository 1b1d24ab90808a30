"""Every kind of file a folder of photographs may hold: read right, or refused in one sentence."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import warnings
import zlib
from email.message import Message
from pathlib import Path
from urllib.request import HTTPHandler, HTTPSHandler, Request
from urllib.response import addinfourl

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, PngImagePlugin

from plrp.vision import BadImage, network_picture, read_photograph
from plrp.vision import photographs as reader
from plrp.vision.photographs import as_photograph, decode_photograph, read_mask


def gradient(width: int = 60, height: int = 40) -> np.ndarray:
    """A picture with no symmetry: red grows to the right, green downwards, blue is a corner."""
    red = np.tile(np.linspace(0, 255, width), (height, 1))
    green = np.tile(np.linspace(0, 255, height)[:, None], (1, width))
    blue = np.zeros((height, width))
    blue[: height // 3, : width // 3] = 200
    return np.stack([red, green, blue], axis=-1).astype(np.uint8)


def pixels(path: Path) -> np.ndarray:
    photograph = read_photograph(path)
    assert photograph.image.mode == "RGB"
    return np.asarray(photograph.image).astype(int)


def test_rgb_is_read_as_it_is(tmp_path: Path) -> None:
    Image.fromarray(gradient()).save(tmp_path / "a.png")
    assert np.array_equal(pixels(tmp_path / "a.png"), gradient())
    assert read_photograph(str(tmp_path / "a.png")).name == "a"


def test_greyscale_has_three_equal_channels(tmp_path: Path) -> None:
    grey = gradient()[..., 0]
    Image.fromarray(grey).save(tmp_path / "a.png")
    assert np.array_equal(pixels(tmp_path / "a.png"), np.repeat(grey[..., None], 3, axis=2))


def test_black_and_white_is_read(tmp_path: Path) -> None:
    bits = gradient()[..., 0] > 100
    Image.fromarray(bits).save(tmp_path / "a.png")
    assert np.array_equal(pixels(tmp_path / "a.png")[..., 1] == 255, bits)


def test_cmyk_jpeg_keeps_its_colours(tmp_path: Path) -> None:
    Image.new("RGB", (32, 32), (200, 40, 40)).convert("CMYK").save(tmp_path / "a.jpg")
    assert np.abs(pixels(tmp_path / "a.jpg") - (200, 40, 40)).max() <= 4


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_keep_the_upper_eight(tmp_path: Path, suffix: str) -> None:
    values = np.linspace(0, 65535, 60 * 40).reshape(40, 60).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / f"a.{suffix}")
    read = pixels(tmp_path / f"a.{suffix}")
    assert np.array_equal(read[..., 0], values >> 8)  # neither clipped to white nor wrapped round
    assert read.max() == 255


def test_thirty_two_bit_integers_and_floats_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4), 1_000_000, dtype=np.int32)).save(tmp_path / "i.tif")
    Image.fromarray(np.full((4, 4), 0.5, dtype=np.float32)).save(tmp_path / "f.tif")
    with pytest.raises(BadImage, match=r"i\.tif holds integers outside 0\.\.65535"):
        read_photograph(tmp_path / "i.tif")
    with pytest.raises(BadImage, match=r"f\.tif holds floating-point pixels"):
        read_photograph(tmp_path / "f.tif")


def test_a_palette_is_looked_up(tmp_path: Path) -> None:
    Image.fromarray(gradient()).quantize(200).save(tmp_path / "a.png")
    assert np.abs(pixels(tmp_path / "a.png") - gradient()).mean() < 6


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_lies_over_white(tmp_path: Path, mode: str) -> None:
    layer = np.dstack([gradient(), np.full((40, 60), 255, np.uint8)])
    layer[:, :30, 3] = 0
    image = Image.fromarray(layer)
    if mode == "P":
        index = Image.new("P", (60, 40), 1)
        index.putpalette([9, 9, 9, 200, 10, 10])
        index.paste(0, (0, 0, 30, 40))
        index.save(tmp_path / "a.png", transparency=0)
    else:
        image.convert(mode).save(tmp_path / "a.png")
    read = pixels(tmp_path / "a.png")
    assert (read[:, :30] == 255).all()
    assert not (read[:, 30:] == 255).all()
    assert read_photograph(tmp_path / "a.png").transparent
    image.convert("RGB").convert("RGBA").save(tmp_path / "opaque.png")
    assert not read_photograph(tmp_path / "opaque.png").transparent


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_undone(tmp_path: Path, orientation: int) -> None:
    upright = Image.fromarray(gradient(64, 48))
    T = Image.Transpose
    stored_as = [
        None,
        T.FLIP_LEFT_RIGHT,
        T.ROTATE_180,
        T.FLIP_TOP_BOTTOM,
        T.TRANSPOSE,
        T.ROTATE_90,
        T.TRANSVERSE,
    ]
    how = [*stored_as, T.ROTATE_270][orientation - 1]
    stored = upright if how is None else upright.transpose(how)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "a.jpg", quality=95, exif=exif)
    photograph = read_photograph(tmp_path / "a.jpg")
    assert photograph.size == photograph.image.size == (64, 48)
    assert np.abs(np.asarray(photograph.image).astype(int) - gradient(64, 48)).mean() < 4


def test_one_pixel_becomes_a_plain_picture(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), (10, 200, 30)).save(tmp_path / "a.png")
    picture = network_picture(read_photograph(tmp_path / "a.png"))
    assert picture.size == (224, 224)
    assert (np.asarray(picture) == (10, 200, 30)).all()


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "tif"])
@pytest.mark.parametrize("kept", [0.0, 0.02, 0.5, 0.9])
def test_a_file_cut_off_is_refused(tmp_path: Path, suffix: str, kept: float) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    whole = tmp_path / f"whole.{suffix}"
    Image.fromarray(noise).save(whole)
    content = whole.read_bytes()
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(BadImage, match=rf"cut\.{suffix} (is|holds)") as caught:
        read_photograph(cut)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200 + len(str(cut))


def test_damage_in_the_middle_is_refused_or_read_but_never_a_crash(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    refused = 0
    for suffix in ("png", "jpg", "gif", "tif", "bmp", "webp"):
        Image.fromarray(gradient()).save(tmp_path / f"a.{suffix}")
        content = np.frombuffer((tmp_path / f"a.{suffix}").read_bytes(), np.uint8)
        for _ in range(30):
            damaged = content.copy()
            where = rng.integers(0, len(damaged), 8)
            damaged[where] = rng.integers(0, 255, 8)
            (tmp_path / f"b.{suffix}").write_bytes(damaged.tobytes())
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Pillow warns about odd EXIF and TIFF tags
                    read_photograph(tmp_path / f"b.{suffix}")
            except BadImage:
                refused += 1
    assert refused > 20


def test_what_is_no_photograph_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("dear diary")
    (tmp_path / "folder.jpg").mkdir()
    for name, reason in {
        "text.jpg": "is not an image that plrp can read: save it as JPEG or PNG",
        "none.jpg": "does not exist",
        "folder.jpg": "is a folder",
    }.items():
        with pytest.raises(BadImage, match=reason):
            read_photograph(tmp_path / name)


def test_no_file_starts_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow gives EPS to Ghostscript, under any name."""
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **_: started.append(given))
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **_: started.append(given))
    Image.fromarray(gradient()).save(tmp_path / "cat.eps")
    (tmp_path / "cat.jpg").write_bytes(content := (tmp_path / "cat.eps").read_bytes())
    for read in (read_photograph, read_mask):
        for name in ("cat.eps", "cat.jpg"):
            with pytest.raises(BadImage, match=rf"{name} is not an image that plrp can read"):
                read(tmp_path / name)
    with pytest.raises(BadImage, match=r"cat\.jpg is not an image"):
        decode_photograph(content, "cat.jpg")
    assert started == []


@pytest.mark.parametrize("error", [subprocess.CalledProcessError(1, "gs"), KeyError("tile"), struct.error("short")])
def test_any_error_of_a_decoder_is_a_bad_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    Image.fromarray(gradient()).save(tmp_path / "cat.png")
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    with pytest.raises(BadImage, match=r"cat\.png is damaged"):
        read_photograph(tmp_path / "cat.png")


def png_header(width: int, height: int) -> bytes:
    """The first bytes of an 8-bit RGB PNG that claims this size and has no pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))


@pytest.mark.parametrize("side", [13_000, 60_000])
def test_a_decompression_bomb_is_refused_by_its_header(tmp_path: Path, side: int) -> None:
    (tmp_path / "bomb.png").write_bytes(png_header(side, side) + b"\0\0\0\0IDAT")
    with pytest.raises(BadImage, match="megapixels"):
        read_photograph(tmp_path / "bomb.png")


MEASURE = """
import resource, sys
from plrp.vision import network_input, read_photograph
for path in sys.argv[1:]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    photograph = read_photograph(path)
    tensor = network_input(photograph)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    assert photograph.size == (10_000, 10_000) and min(photograph.image.size) >= 1000, photograph
    assert tensor.shape == (3, 224, 224) and tensor.std() > 0.1
"""


def test_a_hundred_megapixels_take_bounded_memory(tmp_path: Path) -> None:
    """In MiB: decoded whole, each of these is 95; JPEG decodes straight to a smaller size, PNG cannot."""
    image = Image.fromarray(gradient(100, 100)[..., 0]).resize((10_000, 10_000), Image.Resampling.NEAREST)
    image.save(tmp_path / "large.jpg")
    image.save(tmp_path / "large.png", compress_level=1)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", MEASURE, str(tmp_path / "large.jpg"), str(tmp_path / "large.png")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    jpeg, png = map(int, run.stdout.split())
    assert jpeg < 40
    assert png < 180


def test_large_files_look_like_small_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (30, 20, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((1000, 1500), Image.Resampling.BICUBIC)
    for suffix in ("jpg", "png"):
        path = tmp_path / f"a.{suffix}"
        image.save(path)
        whole = np.asarray(network_picture(read_photograph(path))).astype(int)
        monkeypatch.setattr(reader, "LARGE", 400_000)
        monkeypatch.setattr(reader, "REDUCED_SIDE", 300)
        small = read_photograph(path)
        monkeypatch.undo()
        assert small.size == (1000, 1500)
        assert 300 <= min(small.image.size) < 600
        assert np.abs(np.asarray(network_picture(small)) - whole).mean() < 2


def test_large_palette_and_sixteen_bit_files_are_reduced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LARGE", 1000)
    monkeypatch.setattr(reader, "REDUCED_SIDE", 20)
    Image.fromarray(gradient(90, 60)).quantize(50).save(tmp_path / "p.png")
    Image.fromarray(np.full((60, 90), 40_000, dtype=np.uint16)).save(tmp_path / "i.png")
    for name in ("p.png", "i.png"):
        photograph = read_photograph(tmp_path / name)
        assert photograph.image.size == (30, 20)
        assert photograph.size == (90, 60)
    assert (pixels(tmp_path / "i.png") == 40_000 >> 8).all()


def test_an_address_that_is_none_is_said_in_one_sentence() -> None:
    with pytest.raises(BadImage, match="cannot be read"):
        as_photograph("http://127.0.0.1:9/a b.jpg")  # http.client refuses the space


def test_an_address_is_asked_by_name_and_never_leads_from_https_to_http(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(self: HTTPHandler, request: Request) -> object:
        asked.append((request.full_url, request.get_header("User-agent")))
        headers = Message()
        headers["Location"] = "http://other.example/cat.png"
        return addinfourl(io.BytesIO(), headers, request.full_url, 302)

    monkeypatch.setattr(HTTPHandler, "http_open", answer)
    monkeypatch.setattr(HTTPSHandler, "https_open", answer)
    monkeypatch.setattr(addinfourl, "msg", "Found", raising=False)
    with pytest.raises(BadImage, match=r"cannot be read \(it leads from https to http://other"):
        as_photograph("https://some.example/cat.png")
    assert asked == [("https://some.example/cat.png", "plrp")]
