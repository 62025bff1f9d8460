"""A trained model, ready for use."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from fedaf.engine import EagerEngine, make_engine, resolve_device
from fedaf.federation.model_folder import ModelCard, Which
from fedaf.protocol import Task
from fedaf.runs import inputs
from fedaf.runs.inputs import Images
from fedaf.training.evaluate import predict


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A trained model with everything it needs: class names, image size, normalisation.

    Args:
        module: The network, in eval mode. It takes normalised float32 images [N, C, H, W] and returns logits.
        card: The content of ``model.json``.
        which: ``last`` or ``best``.
        round: The round after which the run had this model.
        client: The client whose personal model this is; ``None`` for the global model.

    Example:
        >>> model = fedaf.load("runs/first")
        >>> model.predict(["a.png", "b.png"])
    """

    module: nn.Module
    card: ModelCard
    which: Which
    round: int
    client: str | None = None
    engine: EagerEngine = field(default_factory=lambda: make_engine("eager", resolve_device("auto"), precision="fp32"))

    def __repr__(self) -> str:
        card = self.card
        whose = f"personal model of {self.client}" if self.client else f"{self.which} model"
        origin = f"{card.method['name']} on {card.dataset}, {whose}, after round {self.round}"
        shape = "x".join(map(str, card.image_shape))
        return f"TrainedModel({card.model['name']}: {origin}; {len(card.classes)} classes, images {shape})"

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of the columns of ``predict_proba``."""
        return self.card.classes

    @property
    def task(self) -> Task:
        """Image shape, number of classes and normalisation."""
        return self.card.task

    def predict(self, images: Images) -> list[str]:
        """Return the class name of each image.

        Args:
            images: Files or folders, Pillow images, or uint8 arrays or tensors [N, H, W, C], [N, C, H, W], [H, W, C],
                [C, H, W], [N, H, W] or [H, W]; one of them, or a list. Images of another size or colour mode are
                converted as the images of ``folder:DIR`` are.

        Raises:
            UserError: The images are of another kind, or a file cannot be read.
        """
        return [self.classes[number] for number in self._logits(images).argmax(1).tolist()]

    def predict_proba(self, images: Images) -> np.ndarray:
        """Return the probability of each class, as float32 [images, classes].

        Args:
            images: Images as for ``predict``.

        Raises:
            UserError: The images are of another kind, or a file cannot be read.
        """
        return self._logits(images).softmax(1).numpy()

    def _logits(self, images: Images) -> Tensor:
        task = self.task
        parts = [
            predict(self.module, some, task, self.engine).cpu() for some in inputs.batches(images, task.image_shape)
        ]
        return torch.cat(parts)
