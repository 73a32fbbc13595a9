"""A small transformer: one block of attention and MLP before a mean over tokens and a linear layer.

A sample's features are cut into equal pieces, such as the rows of a picture; each is a token. Layer norms stand before
attention, before the MLP and before the mean, and what goes in is added to what comes out.
"""

from __future__ import annotations

import math

import numpy as np

from starprof.simulation.training.models.base import Model
from starprof.simulation.training.parameters import Floats32, Labels, Layout, cross_entropy

EPSILON = 1e-5


class Transformer(Model):
    """See the module."""

    def __init__(self, features: int, classes: int, tokens: int, width: int = 16, heads: int = 2) -> None:
        """With `width` numbers a token, which the heads share equally.

        Raises:
            ValueError: features or width can't be divided.
        """
        if features % tokens or width % heads:
            raise ValueError(f"{features} features must be a multiple of {tokens} tokens, {width} of {heads} heads")
        self.tokens, self.width, self.heads = tokens, width, heads
        piece = features // tokens
        self.layout = Layout(
            {
                "embed": (piece, width),
                "place": (tokens, width),
                "norm1_gain": (width,),
                "norm1": (width,),
                "qkv": (width, 3 * width),
                "out": (width, width),
                "norm2_gain": (width,),
                "norm2": (width,),
                "up": (width, 2 * width),
                "up_bias": (2 * width,),
                "down": (2 * width, width),
                "norm3_gain": (width,),
                "norm3": (width,),
                "w": (width, classes),
                "b": (classes,),
            }
        )

    def _forward(self, p: dict[str, Floats32], samples: Floats32) -> dict[str, Floats32]:
        """Everything that the way back needs."""
        seen: dict[str, Floats32] = {"pieces": samples.reshape(len(samples), self.tokens, -1)}
        x0 = seen["pieces"] @ p["embed"] + p["place"]
        normed, seen["unit1"], seen["scale1"] = normalised(x0, p["norm1_gain"], p["norm1"])
        seen["in1"] = normed
        q, k, v = (self._split(part) for part in np.split(normed @ p["qkv"], 3, axis=2))
        scores = q @ k.swapaxes(2, 3) / math.sqrt(self.width // self.heads)
        exp = np.exp(scores - scores.max(axis=3, keepdims=True))
        seen["q"], seen["k"], seen["v"], seen["attention"] = q, k, v, exp / exp.sum(axis=3, keepdims=True)
        seen["mixed"] = self._join(seen["attention"] @ v)
        x1 = x0 + seen["mixed"] @ p["out"]
        seen["in2"], seen["unit2"], seen["scale2"] = normalised(x1, p["norm2_gain"], p["norm2"])
        seen["hidden"] = np.maximum(seen["in2"] @ p["up"] + p["up_bias"], 0.0)
        x2 = x1 + seen["hidden"] @ p["down"]
        normed, seen["unit3"], seen["scale3"] = normalised(x2, p["norm3_gain"], p["norm3"])
        seen["pooled"] = normed.mean(axis=1)
        seen["logits"] = seen["pooled"] @ p["w"] + p["b"]
        return seen

    def _split(self, x: Floats32) -> Floats32:
        """(B, T, W) to (B, H, T, W/H)."""
        return x.reshape(len(x), self.tokens, self.heads, -1).swapaxes(1, 2)

    def _join(self, x: Floats32) -> Floats32:
        """The way back."""
        return x.swapaxes(1, 2).reshape(len(x), self.tokens, self.width)

    def logits(self, flat: Floats32, samples: Floats32) -> Floats32:
        """See `Model`."""
        return self._forward(self.layout.parts(flat), samples)["logits"]

    def gradient(self, flat: Floats32, samples: Floats32, labels: Labels, weights: Floats32) -> tuple[float, Floats32]:
        """See `Model`."""
        p = self.layout.parts(flat)
        seen = self._forward(p, samples)
        loss, back = cross_entropy(seen["logits"], labels, weights)
        result = np.empty(self.layout.size, np.float32)
        g = self.layout.parts(result)
        g["w"][...], g["b"][...] = seen["pooled"].T @ back, back.sum(axis=0)
        to_pooled: Floats32 = back @ p["w"].T
        to_tokens = np.repeat(to_pooled[:, None] / np.float32(self.tokens), self.tokens, axis=1)
        x2 = self._norm_back(3, to_tokens, seen, p, g)
        x1 = x2 + self._norm_back(2, self._mlp_back(x2, seen, p, g), seen, p, g)
        x0 = x1 + self._norm_back(1, self._attention_back(x1, seen, p, g), seen, p, g)
        g["embed"][...] = outer(seen["pieces"], x0)
        g["place"][...] = x0.sum(axis=0)
        return loss, result

    def _mlp_back(
        self, back: Floats32, seen: dict[str, Floats32], p: dict[str, Floats32], g: dict[str, Floats32]
    ) -> Floats32:
        g["down"][...] = outer(seen["hidden"], back)
        hidden: Floats32 = (back @ p["down"].T) * (seen["hidden"] > 0)
        g["up"][...], g["up_bias"][...] = outer(seen["in2"], hidden), hidden.sum(axis=(0, 1))
        result: Floats32 = hidden @ p["up"].T
        return result

    def _attention_back(
        self, back: Floats32, seen: dict[str, Floats32], p: dict[str, Floats32], g: dict[str, Floats32]
    ) -> Floats32:
        g["out"][...] = outer(seen["mixed"], back)
        mixed = self._split(back @ p["out"].T)
        attention, v = seen["attention"], seen["v"]
        to_attention = mixed @ v.swapaxes(2, 3)
        scores = attention * (to_attention - (to_attention * attention).sum(axis=3, keepdims=True))
        scores /= math.sqrt(self.width // self.heads)
        parts = (scores @ seen["k"], scores.swapaxes(2, 3) @ seen["q"], attention.swapaxes(2, 3) @ mixed)
        qkv = np.concatenate([self._join(part) for part in parts], axis=2)
        g["qkv"][...] = outer(seen["in1"], qkv)
        result: Floats32 = qkv @ p["qkv"].T
        return result

    def _norm_back(
        self, number: int, back: Floats32, seen: dict[str, Floats32], p: dict[str, Floats32], g: dict[str, Floats32]
    ) -> Floats32:
        unit, scale = seen[f"unit{number}"], seen[f"scale{number}"]
        g[f"norm{number}_gain"][...] = (back * unit).sum(axis=(0, 1))
        g[f"norm{number}"][...] = back.sum(axis=(0, 1))
        back = back * p[f"norm{number}_gain"]
        level = back.mean(axis=2, keepdims=True)
        along = (back * unit).mean(axis=2, keepdims=True)
        result: Floats32 = (back - level - unit * along) * scale
        return result


def normalised(x: Floats32, gain: Floats32, offset: Floats32) -> tuple[Floats32, Floats32, Floats32]:
    """Layer norm over the last axis: the result, the unit values, and 1 / deviation."""
    centred = x - x.mean(axis=2, keepdims=True)
    scale = 1.0 / np.sqrt((centred * centred).mean(axis=2, keepdims=True) + np.float32(EPSILON))
    unit = centred * scale
    return unit * gain + offset, unit, scale


def outer(inputs: Floats32, back: Floats32) -> Floats32:
    """Gradient of a matrix that all tokens of all samples were multiplied by."""
    result: Floats32 = inputs.reshape(-1, inputs.shape[2]).T @ back.reshape(-1, back.shape[2])
    return result
