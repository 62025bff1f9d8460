"""Your own images: three clinics with different cameras, and a model that is trained on all without sharing a photo.

    python examples/custom_data.py

Data are passed from Python: uint8 arrays with labels, one set per client, and a test set. Here they are generated. If
your images are files, `fedaf run --dataset folder:PATH` needs no code (docs/howto/data.md).
"""

import argparse

import numpy as np

import fedaf

SHAPES = ["circle", "cross", "square"]
SIDE = 16


def draw(shape: str, rng: np.random.Generator, brightness: int) -> np.ndarray:
    """Return a grey image [16, 16] of a shape, at a random place, on noise."""
    y, x = np.mgrid[:SIDE, :SIDE] - rng.uniform(6, 9, (2, 1, 1))
    size = rng.uniform(3, 5)
    drawn = {
        "circle": np.abs(np.hypot(x, y) - size) < 1,
        "cross": (np.minimum(np.abs(x), np.abs(y)) < 1) & (np.maximum(np.abs(x), np.abs(y)) < size),
        "square": np.abs(np.maximum(np.abs(x), np.abs(y)) - size) < 1,
    }[shape]
    return np.clip(rng.normal(40, 15, (SIDE, SIDE)) + drawn * brightness, 0, 255).astype(np.uint8)


def photos(counts: dict[str, int], brightness: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images [N, 16, 16] and the names of their classes [N]."""
    rng, labels = np.random.default_rng(seed), np.repeat(list(counts), list(counts.values()))
    return np.stack([draw(label, rng, brightness) for label in labels]), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--method", default="fedaf")
    arguments = parser.parse_args()
    data = {
        "clients": {  # none has enough of every shape
            "north": photos({"circle": 120, "cross": 40}, brightness=200, seed=1),
            "south": photos({"cross": 90, "square": 30}, brightness=120, seed=2),
            "west": photos({"square": 150}, brightness=80, seed=3),
        },
        "test": photos(dict.fromkeys(SHAPES, 50), brightness=150, seed=4),
    }
    result = fedaf.run(
        dataset=data,
        method=arguments.method,
        preset="quick",  # short rounds
        rounds=arguments.rounds,
        settings={"model.width": 32},  # any other setting; `fedaf settings` lists all
        progress=True,
    )
    print(result)
    images, labels = photos(dict.fromkeys(SHAPES, 2), brightness=150, seed=5)
    for predicted, label in zip(result.predict(images), labels, strict=True):
        print(f"a new photo of a {label}: {predicted}")


if __name__ == "__main__":
    main()
