"""Testing a trained model on the test split of its run, or of another data set."""

from dataclasses import dataclass, replace
from pathlib import Path

from fedaf import config as configuration
from fedaf.config import Config
from fedaf.data import catalog
from fedaf.data.dataset import DataSet, Split, class_names
from fedaf.data.partition import Partition
from fedaf.data.spec import NO_DATA, PYTHON, Progress, custom_spec
from fedaf.federation.run_directory import CONFIG, PARTITION
from fedaf.protocol import UserError
from fedaf.runs import assembly
from fedaf.runs.model import TrainedModel
from fedaf.training.evaluate import score
from fedaf.training.scores import Scores


@dataclass(frozen=True)
class Evaluation:
    """What a model was tested on, and the result.

    Args:
        dataset: Name of the data set.
        samples: Number of test images.
        scores: Accuracy and all other metrics.
    """

    dataset: str
    samples: int
    scores: Scores


def evaluate(
    model: TrainedModel,
    run: Path,
    *,
    dataset: str | None = None,
    data_dir: Path | None = None,
    watch: Progress = None,
) -> Evaluation:
    """Test a model.

    A personal model is tested on the test data of its client: those of its domains, or all if there are no domains.

    Args:
        model: The model.
        run: The directory of its run.
        dataset: Another data set, of the same classes and image shape. Unset: the data set of the run.
        data_dir: Folder that holds the data sets. Unset: as in the run.
        watch: Called while image files are decoded.

    Raises:
        UserError: The data are missing, or have other classes or another image shape than the model.
    """
    config = configuration.build(configuration.read_toml(run / CONFIG))
    folder = Path(config.data.dir) if data_dir is None else data_dir
    if dataset is not None:
        data = _other_data(model, config, dataset, folder, watch)
    elif config.data.name == NO_DATA or config.data.name.startswith(PYTHON):
        origin = "those of its clients" if config.data.name == NO_DATA else "those that were given from Python"
        what = f"the run in {run} had no data but {origin}"
        raise UserError(f"{what}; name a data set with --dataset.", code="FEDAF-EVALUATE-NO-DATA")
    else:
        data = assembly.data_for(config, folder, watch=watch)
    _must_fit(model, data)
    test = data.test
    if model.client is not None and dataset is None:
        own = Partition.reread(run / PARTITION, data).shards(data)[model.client].test
        assert own is not None, "every client of a split data set has test data"
        test = Split(own.images, own.labels)
    return Evaluation(data.name, len(test), score(model.module, test, data.domains, model.task, model.engine))


def _other_data(model: TrainedModel, config: Config, name: str, folder: Path, watch: Progress) -> DataSet:
    """Load another data set; image files are converted to the shape of the model's images."""
    catalog.check_name(name)
    shape, spec, known = model.card.image_shape, None, catalog.find_spec(name)
    if known is None:
        spec = custom_spec(shape, model.classes)
    size = shape[1] if known is not None and known.resized else None
    table = config.data
    data = catalog.load(
        name,
        folder,
        image_size=size,
        max_unreadable=table.max_unreadable,
        progress=watch,
        spec=spec,
        columns=assembly.columns_of(table),
    )
    return replace(data, name=name)  # data that must fit a specification have no name of their own


def _must_fit(model: TrainedModel, data: DataSet) -> None:
    classes = class_names(data.classes, data.num_classes)
    if classes != model.classes:
        what = f"{data.name} has the classes {_listed(classes)}, but the model has {_listed(model.classes)}"
        raise UserError(f"{what}; use data of the same classes, in the same order.", code="FEDAF-EVALUATE-CLASSES")
    shape = tuple(data.test.images.shape[1:])
    if shape != model.card.image_shape:
        what = f"{data.name} has images of shape {list(shape)}, but the model takes {list(model.card.image_shape)}"
        raise UserError(f"{what} (channels, height, width); use other data.", code="FEDAF-EVALUATE-SHAPE")


def _listed(names: tuple[str, ...], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
