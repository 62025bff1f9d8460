"""CIFAR-10: 32x32 colour photographs of 10 classes."""

from fedaf.data.readers.cifar import CifarReader
from fedaf.data.spec import AUGMENT, FEDAF_PLUS, DatasetSpec, OfficialFile

SPEC = DatasetSpec(
    name="cifar10",
    title="CIFAR-10",
    samples="50000 + 10000",
    shape=(3, 32, 32),
    num_classes=10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    reader=CifarReader(
        train=tuple(f"data_batch_{n}" for n in range(1, 6)),
        test=("test_batch",),
        python=("cifar-10-batches-py", "batches.meta"),
        binary=("cifar-10-batches-bin", "batches.meta.txt"),
        labels_key=b"labels",
        names_key=b"label_names",
        label_bytes=1,
    ),
    files=(
        OfficialFile(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            170498071,
            folder="cifar-10-batches-py",
        ),
    ),
    licence="none stated by the authors, ask the source",
    source="Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009), "
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    paper={
        "training": {"augment": AUGMENT},
        "fedaf": {"image_lr": 1.0, "lambda_loc": 1e-4, "lambda_glob": 0.01},
        "fedaf-plus": FEDAF_PLUS,
    },
)
