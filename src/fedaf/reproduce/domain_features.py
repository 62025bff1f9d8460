"""Features of a data set with domains, mapped to the plane by t-SNE."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedaf import config as configuration
from fedaf.data.pixels import normalise
from fedaf.data.statistics import spread
from fedaf.models.backbone import Backbone
from fedaf.protocol import Key, UserError
from fedaf.runs.experiment import prepare
from fedaf.training.fit import fit

_BATCH = 250
_PRINCIPAL = 50  # principal components that t-SNE gets; distances in thousands of dimensions say little


def domain_map(
    dataset: str, data_dir: Path, *, device: str = "auto", backbone: str | None = None, epochs: int = 5, most: int = 250
) -> tuple[np.ndarray, list[int], tuple[str, ...]]:
    """Map the features of test images of each domain to the plane.

    Args:
        dataset: A data set with domains.
        data_dir: Folder of the data sets.
        device: Where to compute.
        backbone: ``module:factory`` of a network that is used with its own weights; by default a ConvNet is trained on
            all domains.
        epochs: Training epochs of that ConvNet.
        most: Test images per domain.

    Returns:
        Points [N, 2], the domain of each point, and the names of the domains.
    """
    tables: dict[str, dict[str, Any]] = {
        "data": {"name": dataset, "dir": str(data_dir)},
        "run": {"device": device},
        "model": {} if backbone is None else {"name": backbone, "keep_weights": True},
        "method": {"name": "fedavg"},
    }
    experiment = prepare(configuration.build(tables))
    data, task, engine, method = experiment.dataset, experiment.task, experiment.engine, experiment.method
    if data.test.domains is None:
        message = f"the data set {dataset!r} has no domains, so their features cannot be drawn."
        raise UserError(message, code="FEDAF-REPRODUCE-DOMAINS")
    model = method.build_model(Key(0))
    if backbone is None:
        train, sgd = data.train, partial(fit, batch_size=64, lr=0.01, momentum=0.9)
        key = Key(0).derive("domains")
        sgd(model, train.images, train.labels, task=task, epochs=epochs, key=key, engine=engine)
    weights = {name: tensor.to(engine.device) for name, tensor in model.state_dict().items()}
    network = Backbone(model, task, engine.device, method.classifier)
    by_domain = [(data.test.domains == number).nonzero().flatten() for number in range(len(data.domains))]
    rows = torch.cat([found[spread(len(found), most)] for found in by_domain])
    with torch.no_grad():
        parts = [
            network.features(weights, normalise(data.test.images[some].to(engine.device), task.mean, task.std)).cpu()
            for some in rows.split(_BATCH)
        ]
    return _plane(torch.cat(parts).numpy()), data.test.domains[rows].tolist(), data.domains


def _plane(features: np.ndarray) -> np.ndarray:
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    few = min(_PRINCIPAL, *features.shape)
    reduced = PCA(few, random_state=0).fit_transform(features.astype(np.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        tsne = TSNE(perplexity=min(30.0, (len(reduced) - 1) / 3), random_state=0)
        points: np.ndarray = tsne.fit_transform(reduced)
    return points
