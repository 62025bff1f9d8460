"""FashionMNIST: articles of clothing, 28x28 grey images of 10 classes."""

from pathlib import Path

from fedaf.data.readers.idx import IdxReader, official_files
from fedaf.data.spec import FEDAF_PLUS, DatasetSpec

SPEC = DatasetSpec(
    name="fashionmnist",
    title="FashionMNIST",
    samples="60000 + 10000",
    shape=(1, 28, 28),
    num_classes=10,
    mean=(0.2860,),
    std=(0.3530,),
    classes=("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    reader=IdxReader(
        torchvision="FashionMNIST",
        installed=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's package dataset-fashion-mnist
    ),
    licence="MIT",
    source="Zalando Research, https://github.com/zalandoresearch/fashion-mnist",
    files=official_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",  # S3 website addresses have no TLS
        {
            "train-images-idx3": (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            "train-labels-idx1": (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            "t10k-images-idx3": (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            "t10k-labels-idx1": (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        },
    ),
    # No augmentation: accuracy on held-out training images was higher without.
    paper={"fedaf": {"image_lr": 0.2, "lambda_loc": 1e-3, "lambda_glob": 2.0}, "fedaf-plus": FEDAF_PLUS},
)
