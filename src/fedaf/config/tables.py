"""The tables of a configuration. Every setting is declared here, or in the options of its method."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, field_validator

from fedaf.common.options import Flag, OneOf, Options
from fedaf.data.registry import AUGMENTATIONS, DATASETS, PARTITIONS
from fedaf.engine.registry import ENGINES
from fedaf.federation.trackers.registry import TRACKERS
from fedaf.methods.registry import METHODS
from fedaf.models.registry import MODELS
from fedaf.privacy.options import PrivacyOptions


class RunTable(Options):
    """The ``[run]`` table: seed, length and hardware."""

    seed: Annotated[int, Flag("Run")] = Field(0, ge=0, lt=2**62, description="random seed")
    rounds: Annotated[int, Flag("Run", default="by preset")] = Field(20, ge=1, description="communication rounds")
    device: Annotated[str, Flag("Run")] = Field("auto", description="device: auto, cpu, cuda, cuda:N or mps")
    engine: Annotated[str, Flag("Run"), OneOf(ENGINES, ("auto",))] = Field(
        "auto", description="compute engine; cuda-graphs is fastest and needs CUDA, eager is plain PyTorch"
    )
    precision: Annotated[Literal["auto", "fp32", "tf32", "bf16"], Flag("Run")] = Field(
        "auto", description="numeric precision; auto is bf16 with cuda-graphs, tf32 with eager on CUDA, fp32 elsewhere"
    )
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; unset: PyTorch's default")
    clients_at_once: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="clients that train at the same time, if their memory fits the budget; unset: one per CPU thread "
        "and at most 4, or 1 on a GPU",
    )
    memory_budget_mib: Annotated[int | None, Flag("Run", "memory_budget", "by device")] = Field(
        None, ge=1, description="memory budget of one step, in MiB; unset: by device"
    )
    keep_checkpoints: int = Field(2, ge=0, description="number of newest checkpoints to keep; 0 keeps all")
    track: Annotated[list[Annotated[str, OneOf(TRACKERS)]], Flag("Run", default="none")] = Field(
        [], description="trackers that the run is sent to, separated by commas; they do not change the numbers"
    )

    @field_validator("track", mode="before")
    @classmethod
    def _split(cls, names: Any) -> Any:
        """Accept ``"tensorboard,mlflow"`` in place of a list, and in its items; drop names that are given twice."""
        given = [names] if isinstance(names, str) else names
        if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
            return names
        return list(dict.fromkeys(name.strip() for each in given for name in each.split(",") if name.strip()))


class DataTable(Options):
    """The ``[data]`` table: which data set, where it is and how it is read."""

    name: Annotated[str, Flag("Data", "dataset"), OneOf(DATASETS, unlisted=("none",))] = Field(
        "digits", description="data set (none: for a server that has no data)"
    )
    test: Annotated[str | None, Flag("Data", "test_dataset", "the one of the data set"), OneOf(DATASETS)] = Field(
        None,
        description="data set whose test split and normalisation are used, to train on a condensed set of it; unset: "
        "those of the data set itself",
    )
    dir: Annotated[str, Flag("Data", "data_dir")] = Field("data", description="folder that holds the data sets")
    image_size: int | None = Field(
        None, ge=1, le=4096, description="resize image files to this side length; unset: 64, or their size if smaller"
    )
    image_column: str | None = Field(
        None, description="column of the images or file names (parquet, labels.csv); unset: one with a usual name"
    )
    label_column: str | None = Field(
        None, description="column of the labels (parquet, labels.csv); unset: one with a usual name"
    )
    client_column: str | None = Field(
        None, description="column of the natural client (parquet, labels.csv); unset: client or client_id, if there"
    )
    domain_column: str | None = Field(
        None, description="column of the domain (parquet, labels.csv); unset: domain, if there"
    )
    max_unreadable: float = Field(0.01, ge=0, le=1, description="fraction of image files that may be unreadable")
    validation: int | None = Field(
        None, ge=1, description="hold out N training images and test on them, for tuning; unset: use the test set"
    )
    selection: int | None = Field(
        None,
        ge=1,
        description="set aside N training images to choose the best model by; unset: the last model is the one to use",
    )
    mean: list[float] | None = Field(None, description="normalisation mean per channel; unset: that of the data set")
    std: list[float] | None = Field(None, description="normalisation std per channel; unset: that of the data set")
    shape: list[PositiveInt] | None = Field(
        None,
        min_length=3,
        max_length=3,
        description="over a network: channels, height, width; unset: those of the data set",
    )
    classes: list[str] | None = Field(
        None, min_length=2, description="over a network: class names in order; unset: those of the data set"
    )


class PartitionTable(Options):
    """The ``[partition]`` table: how training data are split among clients."""

    kind: Annotated[str, OneOf(PARTITIONS, ("auto",))] = Field(
        "auto",
        description="data split; auto is natural or domain if the data have clients or domains and alpha and clients "
        "are unset, else dirichlet",
    )
    clients: Annotated[int, Flag("Data")] = Field(10, ge=1, description="number of clients")
    alpha: Annotated[float, Flag("Data")] = Field(
        0.1, gt=0, le=1e6, description="Dirichlet concentration; smaller is more skewed"
    )
    min_size: int = Field(10, ge=1, description="minimum number of samples per client (dirichlet, sizes)")
    max_redraws: int = Field(1000, ge=0, description="maximum number of redraws to reach min_size (dirichlet)")
    shards_per_client: int = Field(2, ge=1, description="label-sorted shards per client (shards)")
    classes_per_client: int = Field(2, ge=1, description="number of classes per client (classes)")
    size_sigma: float = Field(1.0, ge=0, le=10, description="spread of the clients' sizes: sigma of log-normal (sizes)")
    noise_level: float = Field(
        0.1, ge=0, le=10, description="noise of the last client, as standard deviation for pixels in [0, 1] (noise)"
    )
    path: str | None = Field(None, description="partition.json of an earlier run, to use again (file)")


class ModelTable(Options):
    """The ``[model]`` table: the network to train."""

    name: Annotated[str, Flag("Method", "model"), OneOf(MODELS)] = Field("convnet", description="model")
    depth: int = Field(3, ge=1, le=8, description="number of blocks of the ConvNet")
    width: int = Field(128, ge=1, le=8192, description="number of filters per block of the ConvNet")
    norm: Literal["batch", "group", "instance", "none"] = Field("batch", description="normalisation layers")
    groups: int = Field(8, ge=1, description="groups of channels that GroupNorm (norm = 'group') normalises together")
    classifier: str | None = Field(
        None, min_length=1, description="classifier layer, whose input is the features; unset: the last Linear layer"
    )
    output: int | str | None = Field(
        None,
        description="number or key of the logits, if a custom model returns several outputs; unset: it returns one",
    )
    keep_weights: bool = Field(False, description="start from the weights of a custom model; false: from fresh weights")
    weights: Annotated[str | None, Flag("Method", default="fresh weights")] = Field(
        None, description="safetensors file with the state dict that the global model starts from; unset: fresh weights"
    )
    weights_sha256: str | None = Field(
        None, description="SHA-256 of this file, which is checked; a run adds it to its config.toml; unset: any file"
    )

    @field_validator("classifier", mode="before")
    @classmethod
    def _accept_numbers(cls, name: Any) -> Any:
        """Layers of a Sequential have numbers as names, which TOML and ``--set`` read as integers."""
        return str(name) if isinstance(name, int) and not isinstance(name, bool) else name


class FederationTable(Options):
    """The ``[federation]`` table: who takes part in a round, and for how long."""

    participation: Annotated[float, Flag("Run")] = Field(
        1.0, gt=0, le=1, description="fraction of clients that take part in a round"
    )
    quorum: float = Field(0.5, gt=0, le=1, description="fraction of these clients that must reply")
    deadline: float | None = Field(None, gt=0, description="time limit of a phase in seconds; unset: none")
    min_clients: int = Field(2, ge=1, description="over a network: clients that must be connected to start a round")
    wait: float = Field(600.0, ge=0, description="over a network: seconds to wait for these clients")
    policy: Annotated[str | None, Flag("Run", default="none")] = Field(
        None, description="policy of every client: a TOML file, or default for the built-in policy; unset: none"
    )


class TrainingTable(Options):
    """The ``[training]`` table: what all methods train with."""

    augment: list[Annotated[str, OneOf(AUGMENTATIONS)]] = Field([], description="augmentations of training images")


class MethodTable(Options):
    """The ``[method]`` table without the options of the method itself."""

    name: Annotated[str, Flag("Method", "method"), OneOf(METHODS)] = Field("fedaf", description="method")


class Tables(Options):
    """All tables but ``[method]``, in the order in which they are written."""

    preset: str
    run: RunTable = RunTable()
    data: DataTable = DataTable()
    partition: PartitionTable = PartitionTable()
    model: ModelTable = ModelTable()
    federation: FederationTable = FederationTable()
    training: TrainingTable = TrainingTable()
    privacy: PrivacyOptions = PrivacyOptions()


#: Every table by name; ``[method]`` comes last.
TABLES: dict[str, type[Options]] = {
    **{name: type(field.default) for name, field in Tables.model_fields.items() if name != "preset"},
    "method": MethodTable,
}
