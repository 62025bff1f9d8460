"""MNIST: handwritten digits, 28x28 grey images of 10 classes."""

from fedaf.data.readers.idx import IdxReader, official_files
from fedaf.data.spec import DatasetSpec

SPEC = DatasetSpec(
    name="mnist",
    title="MNIST",
    samples="60000 + 10000",
    shape=(1, 28, 28),
    num_classes=10,
    mean=(0.1307,),
    std=(0.3081,),
    classes=tuple("0123456789"),
    source="LeCun, Cortes and Burges, The MNIST database of handwritten digits",
    reader=IdxReader(torchvision="MNIST"),
    files=official_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3": (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            "train-labels-idx1": (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            "t10k-images-idx3": (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            "t10k-labels-idx1": (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        },
    ),
)
