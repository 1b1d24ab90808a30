"""Occlusion by tiles where it is cheap: in a chain of convolutions a tile changes only what lies around it.

Every layer is computed for the changed box alone, beside what the untouched photograph gave; the numbers are those of
`plrp.metrics.occlusion`, to rounding, for about a fifth of the time on VGG-16.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

Box = tuple[int, int, int, int]  # top, bottom, left, right; the ends not included


def occlusion_of_chain(
    features: nn.Sequential, head: Callable[[Tensor], Tensor], image: Tensor, baseline: Tensor, tile: int
) -> Tensor:
    """Falls of all scores, (tiles, classes), tiles counted row by row, of `head(features(image))`; image is (1, …)."""
    with torch.no_grad():
        maps = [image]
        for layer in features:
            maps.append(layer(maps[-1]))
        whole = head(maps[-1])
        height, width = image.shape[-2:]
        tops = [
            _changed(features, maps, baseline, (y, min(y + tile, height), x, min(x + tile, width)))
            for y in range(0, height, tile)
            for x in range(0, width, tile)
        ]
        return torch.cat([whole - head(top) for top in tops])


def _changed(features: nn.Sequential, maps: list[Tensor], baseline: Tensor, box: Box) -> Tensor:
    """The top map where the image holds the baseline in a box."""
    patch = _cut(baseline, box)
    for layer, below, above in zip(features, maps, maps[1:], strict=False):
        height, width = above.shape[-2:]
        if isinstance(layer, nn.Conv2d):
            of_vgg = nn.Conv2d(layer.in_channels, layer.out_channels, 3, padding=1, device="meta")
            if str(layer) != str(of_vgg):
                raise ValueError(f"convolutions of 3 × 3 with zeros around the map are understood; got {layer}.")
            reads = _grown(box, 2, height, width)
            patch = _pasted(below, patch, box, reads)
            box = _grown(box, 1, height, width)
            beyond = (reads[2] - box[2] + 1, box[3] + 1 - reads[3], reads[0] - box[0] + 1, box[1] + 1 - reads[1])
            patch = conv2d(pad(patch, beyond), layer.weight, layer.bias)  # beyond the map lie zeros
        elif isinstance(layer, nn.MaxPool2d):
            if below.shape[-2:] != (2 * height, 2 * width) or layer.kernel_size != 2:
                raise ValueError(f"max pools of 2 × 2 over maps of even sides are understood; got {layer}.")
            pooled = (box[0] // 2, -(-box[1] // 2), box[2] // 2, -(-box[3] // 2))
            patch = layer(_pasted(below, patch, box, (2 * pooled[0], 2 * pooled[1], 2 * pooled[2], 2 * pooled[3])))
            box = pooled
        elif isinstance(layer, nn.ReLU):
            patch = layer(patch)
        else:
            raise ValueError(f"chains of convolutions, ReLUs and max pools are understood; got {layer}.")
    return _pasted(maps[-1], patch, box, (0, maps[-1].shape[-2], 0, maps[-1].shape[-1]))


def _grown(box: Box, by: int, height: int, width: int) -> Box:
    return max(box[0] - by, 0), min(box[1] + by, height), max(box[2] - by, 0), min(box[3] + by, width)


def _cut(whole: Tensor, box: Box) -> Tensor:
    return whole[..., box[0] : box[1], box[2] : box[3]]


def _pasted(whole: Tensor, patch: Tensor, box: Box, reads: Box) -> Tensor:
    """What lies at `reads` of a map, where a patch took the place of what was at `box`."""
    found = _cut(whole, reads).clone()
    found[..., box[0] - reads[0] : box[1] - reads[0], box[2] - reads[2] : box[3] - reads[2]] = patch
    return found
