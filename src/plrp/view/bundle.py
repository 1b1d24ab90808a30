"""The bundle: one explained input as plain data, for a page to draw and for Python to read back.

`facts` is JSON: names, numbers, and where each array lies. The arrays follow each other as bytes, compressed together
with zlib, which browsers decompress by themselves. Relevance is quantised to 8 bits:

    q = sign(r) · max(1, round(127 · √(|r| / largest)))    r ≠ 0,    q = 0    r = 0
    r ≈ sign(q) · largest · (q / 127)²

The root spends the levels where colours differ visibly. Zero stays zero, so the pruned places are exact.
"""

from __future__ import annotations

import base64
import io
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

LEVELS = 127
FORMAT = 1
LARGEST = 2**29  # bytes that the arrays of a page take when they are unpacked
KINDS = ("int8", "uint8", "uint32")  # element types that a page reads
_ALIGNED = 4  # bytes; a page reads uint32 in place


class BundleError(ValueError):
    """A file that holds no bundle, or one of another version."""


@dataclass(frozen=True)
class Bundle:
    """One explained input: `facts` (JSON) and `arrays` by name."""

    facts: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]

    def relevance(self, array: str, number: int) -> npt.NDArray[np.float64]:
        """One map of a quantised array, as relevance; `facts["largest"][array]` has its scale."""
        return dequantise(self.arrays[array][number], self.facts["largest"][array][number])

    def lighter(self, channels: int) -> Bundle:
        """The same bundle with the paths and patches of at most `channels` channels per layer."""
        numbers: list[int] = []
        rows = []
        for layer in self.facts.get("channels", []):
            rows.append([dict(row) for row in layer])
            for place, row in enumerate(rows[-1]):
                if place >= channels:
                    for name in ("through", "limit", "exemplars"):
                        row.pop(name, None)
                elif "through" in row:
                    numbers.append(row["through"])
                    row["through"] = len(numbers) - 1
        if "through" not in self.arrays:
            return self
        scales = self.facts["largest"]
        largest = {**scales, "through": [scales["through"][number] for number in numbers]}
        arrays = {**self.arrays, "through": self.arrays["through"][numbers]}
        return Bundle({**self.facts, "channels": rows, "largest": largest}, arrays)

    def pack(self) -> tuple[str, str]:
        """The facts as JSON, and the arrays compressed, in base64."""
        parts, places, offset = [], {}, 0
        for name, array in self.arrays.items():
            if array.dtype.name not in KINDS:
                raise TypeError(f"the array {name!r} is {array.dtype}: a page reads {', '.join(KINDS)}.")
            content = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
            places[name] = {"type": array.dtype.name, "shape": list(array.shape), "offset": offset}
            content += b"\0" * (-len(content) % _ALIGNED)
            parts.append(content)
            offset += len(content)
        facts = {"format": FORMAT, **self.facts, "arrays": places}
        text = json.dumps(facts, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text, base64.b64encode(zlib.compress(b"".join(parts), 9)).decode("ascii")

    @classmethod
    def unpack(cls, facts: str, arrays: str) -> Bundle:
        """The inverse of `pack`."""
        try:
            known = json.loads(facts)
            if known.pop("format") != FORMAT:
                raise BundleError(f"the bundle is not of version {FORMAT}: read it with the plrp that wrote it.")
            content = _decompressed(base64.b64decode(arrays, validate=True))
            unpacked = {name: _array(content, place) for name, place in known.pop("arrays").items()}
        except BundleError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError, zlib.error) as error:
            raise BundleError(f"the bundle is damaged ({error}): write it again.") from error
        return cls(known, unpacked)


def _decompressed(content: bytes) -> bytes:
    """The decompressed bytes, at most `LARGEST` of them: a page may come from anywhere."""
    unpacking = zlib.decompressobj()
    unpacked = unpacking.decompress(content, LARGEST + 1)
    if len(unpacked) > LARGEST:
        raise BundleError(f"the bundle takes more than {LARGEST // 2**20} MB: write it again with fewer targets.")
    if not unpacking.eof:
        raise zlib.error("incomplete data")
    return unpacked


def _array(content: bytes, place: Mapping[str, Any]) -> npt.NDArray[Any]:
    if place["type"] not in KINDS:
        raise BundleError(f"the bundle is damaged (type {place['type']!r}): write it again.")
    kind, shape = np.dtype(place["type"]).newbyteorder("<"), tuple(place["shape"])
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(content, kind, count, int(place["offset"])).reshape(shape).astype(place["type"])


def finite(value: float) -> float | None:
    """The number itself; None if it is infinite or NaN, which JSON cannot write."""
    return float(value) if math.isfinite(value) else None


def quantise(relevance: npt.ArrayLike) -> tuple[npt.NDArray[np.int8], float]:
    """Relevance in 8 bits, and its largest absolute value; see above."""
    values = np.asarray(relevance, np.float64)
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0:
        return np.zeros(values.shape, np.int8), 0.0
    level = np.rint(LEVELS * np.sqrt(np.abs(values) / largest))
    return (np.sign(values) * np.maximum(level, values != 0)).astype(np.int8), largest


def dequantise(levels: npt.NDArray[np.int8], largest: float) -> npt.NDArray[np.float64]:
    """The relevance that levels stand for."""
    share = levels.astype(np.float64) / LEVELS
    return np.sign(share) * share**2 * largest


def data_address(pixels: npt.NDArray[np.uint8], side: int | None = None, kind: str = "PNG", **options: Any) -> str:
    """A picture (height, width, 3) as an address that holds it, scaled down to `side` pixels."""
    from PIL import Image as pil

    image, content = pil.fromarray(pixels), io.BytesIO()
    if side is not None:
        image.thumbnail((side, side))
    image.save(content, format=kind, optimize=True, **options)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(content.getvalue()).decode("ascii")
