"""Read any photograph into plain RGB with bounded memory, or refuse it in one sentence; make it a network's input.

Real folders of photographs hold greyscale, CMYK, 16-bit and palette files, alpha channels, EXIF rotations, panoramas
and half-finished downloads. Every readable file becomes upright 8-bit RGB over white.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np
import torch
from torch import Tensor

from plrp.errors import needed
from plrp.models.preprocessing import Preprocessing

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
# The decoders that a file is given to, whatever its name: Pillow has others, of which EPS starts Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000", "AVIF")
LARGE = 16_000_000  # pixels; larger photographs are decoded at reduced size
LARGEST = 160_000_000  # pixels; larger ones are refused before a byte is decoded (a 60000 x 60000 header is a bomb)
LARGEST_FILE = 200 * 2**20  # bytes that are read from an address
_ORIENTATION = 0x0112  # the EXIF tag
_UNREADABLE = {
    FileNotFoundError: "does not exist",
    IsADirectoryError: "is a folder, not a photograph",
    PermissionError: "cannot be read (permission denied)",
}
REDUCED_SIDE = 1024  # pixels that the shorter side of a large photograph has at least after reducing
LONGEST = 4096  # pixels; a strip whose resized long side would exceed it is cropped before it is resized
DEFAULT = Preprocessing()


class BadImage(ValueError):
    """A file that cannot be read as a photograph; the message names the file and the reason."""


@dataclass(frozen=True)
class Photograph:
    """An upright 8-bit RGB picture and where it came from.

    `size` is the (width, height) of the file after EXIF rotation; `image` is smaller where the file has more than
    `LARGE` pixels. `transparent`: whether parts of the file were; they lie over white now.
    """

    image: Image
    size: tuple[int, int]
    path: Path
    transparent: bool = False

    @property
    def name(self) -> str:
        """The file's name without its folder and suffix."""
        return self.path.stem


def read_photograph(path: str | Path) -> Photograph:
    """Read one photograph; raises `BadImage` if the file is not a picture, is truncated, or is too large."""
    return _photograph(*_decode(Path(path)), Path(path))


def photographs_in(folder: Path, deep: bool = False) -> list[Path]:
    """The files of a folder (with `deep` also of the folders inside it) that end like photographs, in order.

    Hidden files are left out: macOS writes `._photo.jpg` beside `photo.jpg`.
    """
    files = folder.rglob("*") if deep else folder.iterdir()
    return sorted(p for p in files if p.suffix.lower() in SUFFIXES and not p.name.startswith(".") and p.is_file())


def as_photograph(given: Any) -> Photograph:
    """A photograph from a path, an address of a file, a Pillow picture, an array or a tensor."""
    if isinstance(given, Photograph):
        return given
    if isinstance(given, str) and given.lower().startswith(("http://", "https://", "file://")):
        return decode_photograph(_fetched(given), unquote(urlsplit(given).path).rpartition("/")[2] or "photograph")
    if isinstance(given, str | Path):
        return read_photograph(given)
    name = Path("photograph")
    if hasattr(given, "convert") and hasattr(given, "getexif"):  # a Pillow picture, upright as its owner holds it
        return _photograph(given, given.size, name)
    if isinstance(given, Tensor):
        if given.dim() == 4 and len(given) == 1:
            given = given[0]
        if given.dim() == 3 and given.shape[0] in (1, 3, 4):
            given = given.permute(1, 2, 0)
        given = given.detach().cpu().numpy()
    if isinstance(given, np.ndarray):
        image = _from_pixels(given)
        return _photograph(image, image.size, name)
    raise TypeError(
        "A photograph is a path, an address, a Pillow picture, an array (height, width, 3) or a tensor (3, height, "
        f"width), got {type(given).__name__}."
    )


def _from_pixels(pixels: np.ndarray) -> Image:
    """A picture from (height, width[, 1, 3 or 4]), integers 0…255 or floats 0…1."""
    from PIL import Image as pil

    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4)) or not pixels.size:
        raise BadImage(
            f"pixels of shape {pixels.shape} are no photograph: (height, width), or with 3 or 4 colours last."
        )
    if pixels.dtype == bool or np.issubdtype(pixels.dtype, np.complexfloating):
        raise BadImage(f"pixels of type {pixels.dtype} are no photograph: give integers 0…255 or numbers 0…1.")
    highest = 255 if np.issubdtype(pixels.dtype, np.integer) else 1
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= highest):  # NaN too
        raise BadImage(
            f"the pixels go from {low:.3g} to {high:.3g} instead of 0 to {highest}: give them as they are before "
            "normalisation, or explain the normalised tensor with plrp.explain."
        )
    return pil.fromarray(np.round(pixels * (255 / highest)).astype(np.uint8))


class _StaysSecure(HTTPRedirectHandler):
    """Follows redirects, but not from https to an address whose content others can change on its way."""

    def redirect_request(self, request: Request, answer: Any, code: int, message: str, headers: Any, url: str) -> Any:
        if request.type == "https" and urlsplit(url).scheme != "https":
            raise URLError(f"it leads from https to {url}")
        return super().redirect_request(request, answer, code, message, headers, url)


def _fetched(address: str) -> bytes:
    """The bytes of a file at an address, up to `LARGEST_FILE`."""
    try:
        request = Request(address, headers={"User-Agent": "plrp"})
        with build_opener(_StaysSecure).open(request, timeout=30) as response:
            content: bytes = response.read(LARGEST_FILE + 1)
    except (OSError, ValueError, HTTPException) as error:
        raise BadImage(f"{address} cannot be read ({getattr(error, 'reason', error)}).") from error
    if len(content) > LARGEST_FILE:
        raise BadImage(f"{address} has more than {LARGEST_FILE // 2**20} MB; download it and scale it down first.")
    return content


def decode_photograph(content: bytes, name: str) -> Photograph:
    """A photograph in memory, such as an upload; `name` stands for its path, from which nothing is read."""
    return _photograph(*_decode(Path(name), content=content), Path(name))


def read_mask(path: str | Path) -> tuple[Image, tuple[int, int]]:
    """Read a mask as an 8-bit picture of 0 and 255, and its (width, height) in the file.

    Pixels brighter than mid-grey are inside; in palette files (label maps), every index but 0.
    """
    from PIL import Image as pil

    image, size = _decode(Path(path), rotate=False)
    if image.mode == "P":
        inside = np.asarray(image) > 0
    else:
        inside = np.asarray(_rgb(image, Path(path)).convert("L")) > 127
    return pil.fromarray(inside.astype(np.uint8) * 255), size


def _decode(path: Path, rotate: bool = True, content: bytes | None = None) -> tuple[Image, tuple[int, int]]:
    with needed("reading photographs needs Pillow", "vision"):
        from PIL import Image as pil
        from PIL import ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # The error below states our own limit; Pillow's warning for 89 to 179 megapixels would be noise.
            warnings.simplefilter("ignore", pil.DecompressionBombWarning)
            pil.init()  # AVIF is not in every Pillow
            formats = [one for one in FORMATS if one in pil.OPEN]
            file = pil.open(path if content is None else io.BytesIO(content), formats=formats)
        with file:
            width, height = file.size
            if width * height > LARGEST:
                raise BadImage(
                    f"{path} has {width * height / 1e6:.0f} megapixels, more than the {LARGEST // 10**6} "
                    "that are read; scale it down first."
                )
            if width * height > LARGE:  # JPEG decodes straight to 1/2, 1/4 or 1/8; other formats ignore this
                scale = REDUCED_SIDE / min(width, height)
                file.draft(None, (max(1, int(width * scale)), max(1, int(height * scale))))
            file.load()
            image = _reduced(file) if width * height > LARGE else file.copy()
            orientation = file.getexif().get(_ORIENTATION, 1)
    except (BadImage, MemoryError):
        raise
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise BadImage(f"{path} {_UNREADABLE[type(error)]}.") from error
    except UnidentifiedImageError as error:
        if content == b"" or (content is None and path.stat().st_size == 0):
            raise BadImage(f"{path} is empty.") from error
        raise BadImage(f"{path} is not an image that plrp can read: save it as JPEG or PNG.") from error
    except pil.DecompressionBombError as error:
        raise BadImage(f"{path} has more than {LARGEST // 10**6} megapixels; scale it down first.") from error
    except Exception as error:  # on damaged files Pillow's decoders raise many kinds, and add new ones
        what = "is truncated or damaged" if "truncated" in str(error) else "is damaged"
        raise BadImage(f"{path} {what} ({str(error).rstrip('.') or type(error).__name__}).") from error
    if rotate and orientation in range(2, 9):
        image.getexif()[_ORIENTATION] = orientation  # copies of some formats lose it
        image = ImageOps.exif_transpose(image)
        if orientation >= 5:  # a quarter turn
            width, height = height, width
    return image, (width, height)


def _reduced(image: Image) -> Image:
    """The picture at 1/2, 1/3, … of its size, with the shorter side still at least `REDUCED_SIDE`."""
    from PIL import Image as pil

    factor = max(1, min(image.size) // REDUCED_SIDE)
    if image.mode in ("P", "PA", "1", "I", "I;16", "I;16B", "I;16L"):  # Pillow cannot average these
        return image.resize((image.width // factor, image.height // factor), pil.Resampling.NEAREST)
    return image.reduce(factor)


def _photograph(image: Image, size: tuple[int, int], path: Path) -> Photograph:
    see_through = _layered(image) and bool((np.asarray(image.convert("RGBA"))[..., 3] < 255).any())
    return Photograph(_rgb(image, path), size, path, see_through)


def _layered(image: Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info


def _rgb(image: Image, path: Path) -> Image:
    """8-bit RGB: of 16 bits the upper 8, transparency over white, CMYK converted."""
    from PIL import Image as pil

    if image.mode in ("I;16", "I;16L", "I;16B", "I"):
        values = np.asarray(image).astype(np.int64)
        if values.size and (values.min() < 0 or values.max() > 65535):
            raise BadImage(f"{path} holds integers outside 0..65535, with no defined white; save it as 8 bit.")
        return pil.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise BadImage(f"{path} holds floating-point pixels, with no defined white; save it as 8 bit.")
    if _layered(image):
        layer = image.convert("RGBA")
        white = pil.new("RGBA", layer.size, (255, 255, 255, 255))
        return pil.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


# --- as the network sees it -------------------------------------------------------------------------------------------
# Image and mask are resized and cropped alike, so that a pixel of the relevance and a pixel of the mask are the same
# place. On pictures the result equals torchvision's `ImageClassification` preset bit by bit.


def network_picture(photograph: Photograph, preprocessing: Preprocessing = DEFAULT) -> Image:
    """The network's view of a photograph as an RGB picture: resized and cropped, not normalised."""
    return _resize_and_crop(photograph.image, photograph.size, preprocessing, preprocessing.interpolation)


def network_input(photograph: Photograph, preprocessing: Preprocessing = DEFAULT) -> Tensor:
    """The network's input: float32 (3, height, width), normalised."""
    pixels = torch.from_numpy(np.array(network_picture(photograph, preprocessing)))  # height, width, channel
    return preprocessing.normalise(pixels.permute(2, 0, 1).contiguous().float().div(255))


def network_mask(mask: Image, size: tuple[int, int], preprocessing: Preprocessing = DEFAULT) -> Tensor:
    """The mask of a photograph of `size` (width, height) in its file, as the network sees it: bool (height, width)."""
    return torch.from_numpy(np.array(_resize_and_crop(mask, size, preprocessing, "nearest")) > 127)


def network_point(
    point: tuple[int, int], size: tuple[int, int], preprocessing: Preprocessing = DEFAULT
) -> tuple[float, float]:
    """Where the network sees the middle of a pixel (x, y) of a photograph of `size` (width, height), in its own pixels.

    Cropped pixels lie outside: below zero, or beyond the network's picture.
    """
    resized, crop = _resized_size(size, preprocessing.resize), preprocessing.crop
    sides = resized if crop is None else (crop, crop) if isinstance(crop, int) else (crop[1], crop[0])
    x, y = (
        (place + 0.5) * after / before - round((after - side) / 2)
        for place, before, after, side in zip(point, size, resized, sides, strict=True)
    )
    return x, y


def _resize_and_crop(image: Image, size: tuple[int, int], preprocessing: Preprocessing, interpolation: str) -> Image:
    from PIL import Image as pil

    width, height = _resized_size(size, preprocessing.resize)
    crop = preprocessing.crop
    if max(width, height) > LONGEST:
        if crop is None:
            raise BadImage(
                f"a picture of {image.width} x {image.height} would become {width} x {height} pixels; set crop, or "
                "resize to a fixed (height, width)."
            )
        image, (width, height) = _middle_of_strip(image, (width, height))
    if image.size != (width, height):
        image = image.resize((width, height), pil.Resampling[interpolation.upper()])
    if crop is None:
        return image
    crop_height, crop_width = (crop, crop) if isinstance(crop, int) else crop
    if width < crop_width or height < crop_height:  # the crop reaches outside: black there, as torchvision does
        canvas = pil.new(image.mode, (max(width, crop_width), max(height, crop_height)))
        canvas.paste(image, ((canvas.width - width) // 2, (canvas.height - height) // 2))
        image, (width, height) = canvas, canvas.size
    left, top = round((width - crop_width) / 2), round((height - crop_height) / 2)
    return image.crop((left, top, left + crop_width, top + crop_height))


def _resized_size(size: tuple[int, int], resize: int | tuple[int, int] | None) -> tuple[int, int]:
    """Width and height after resizing a picture of `size` (width, height)."""
    if resize is None:
        return size
    if isinstance(resize, tuple):
        return resize[1], resize[0]
    longer = int(resize * max(size) / min(size))
    return (resize, longer) if size[0] <= size[1] else (longer, resize)


def _middle_of_strip(image: Image, resized: tuple[int, int]) -> tuple[Image, tuple[int, int]]:
    """The middle of a very long picture, and its size after resizing, which takes bounded memory."""
    sides = min(resized[0], LONGEST), min(resized[1], LONGEST)
    width, height = (max(1, round(of * s / r)) for of, s, r in zip(image.size, sides, resized, strict=True))
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height)), sides
