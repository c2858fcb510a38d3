"""NumPy's view of a DCGAN, written with zeros between pixels; complex numbers pass through it."""

import numpy as np


def windows(maps, stride):
    """Each output pixel's 4x4 neighbourhood `[B, H', W', K, 4, 4]`, without padding."""
    seen = np.lib.stride_tricks.sliding_window_view(maps, (4, 4), axis=(1, 2))
    return seen[:, ::stride, ::stride]


def halved(maps, layer):
    """A convolution of stride 2 and one pixel of padding."""
    padded = np.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return np.einsum("bhwkij,ijko->bhwo", windows(padded, 2), layer["kernel"]) + layer.get("bias", 0)


def doubled(maps, layer):
    """The transposed convolution: zeros between the pixels, and two around them."""
    rows, height, width, channels = maps.shape
    spread = np.zeros((rows, 2 * height + 3, 2 * width + 3, channels), maps.dtype)
    spread[:, 2:-2:2, 2:-2:2] = maps
    return np.einsum("bhwkij,ijko->bhwo", windows(spread, 1), layer["kernel"]) + layer.get("bias", 0)


def normalised(maps, name, params, stats, moved, train, real=None):
    """Batch normalisation; `moved` takes the new running statistics."""
    real = np.ones(len(maps), bool) if real is None else real
    flat, old = maps[real].reshape(-1, maps.shape[-1]), stats[name]
    mean = flat.mean(0)
    var = ((flat - mean) ** 2).mean(0)
    unbiased = var * len(flat) / (len(flat) - 1)
    moved[name] = {"mean": 0.9 * old["mean"] + 0.1 * mean, "var": 0.9 * old["var"] + 0.1 * unbiased}
    centre, spread = (mean, var) if train else (old["mean"], old["var"])
    return (maps - centre) / np.sqrt(spread + 1e-5) * params[name]["scale"] + params[name]["bias"]


def generated(params, stats, latents, shape, train):
    """Images, and the statistics after them."""
    moved, positive = {}, lambda maps: np.where(maps.real > 0, maps, 0)
    maps = (latents @ params["dense"]["kernel"]).reshape(len(latents), shape[0] // 4, shape[1] // 4, -1)
    maps = positive(normalised(maps, "norm_0", params, stats, moved, train))
    maps = positive(normalised(doubled(maps, params["conv_0"]), "norm_1", params, stats, moved, train))
    return np.tanh(doubled(maps, params["conv_1"])), moved if train else stats


def judged(params, stats, images, train, real=None):
    """Logits, and the statistics after them."""
    moved, leaky = {}, lambda maps: np.where(maps.real > 0, maps, 0.2 * maps)
    maps = halved(leaky(halved(images, params["conv_0"])), params["conv_1"])
    maps = leaky(normalised(maps, "norm_1", params, stats, moved, train, real))
    logits = maps.reshape(len(maps), -1) @ params["dense"]["kernel"] + params["dense"]["bias"]
    return logits[:, 0], moved if train else stats


def surprise(logits, real):
    """Mean cross-entropy, from probabilities."""
    share = 1 / (1 + np.exp(-logits))
    return -np.log(share if real else 1 - share).mean()
