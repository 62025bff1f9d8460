"""PACS: photographs, paintings, cartoons and sketches of 7 classes, one domain each."""

from fedaf.data.readers.domains import DomainReader
from fedaf.data.spec import AUGMENT, IMAGENET_MEAN, IMAGENET_STD, DatasetSpec

SPEC = DatasetSpec(
    name="pacs",
    title="PACS",
    samples="9991 in total",
    shape=(3, 64, 64),
    num_classes=7,
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
    domains=("art_painting", "cartoon", "photo", "sketch"),
    resized=True,
    arrays=("pacs64",),
    reader=DomainReader(
        folders=("pacs/kfold", "pacs", "PACS/kfold", "PACS", "kfold", ""),
        train_list="{}_train_kfold.txt",
        test_list="{}_crossval_kfold.txt",  # the published test lists repeat the training images
        lists_required=False,
    ),
    homepage="https://domaingeneralization.github.io",
    paper={  # not a data set of the paper: the values of DomainNet, which it stands in for
        "run": {"rounds": 10},
        "training": {"augment": AUGMENT},
        "condensing": {"ipc": 20},
        "fedaf": {"image_lr": 1.0, "lambda_loc": 0.01, "lambda_glob": 0.1},
    },
)
