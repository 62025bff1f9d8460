"""PACS: photographs, paintings, cartoons and sketches of 7 classes, one domain each."""

from fedaf.data.readers.domains import DomainReader
from fedaf.data.sets.domainnet import SPEC as DOMAINNET
from fedaf.data.spec import IMAGENET_MEAN, IMAGENET_STD, DatasetSpec

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
    source="Li et al., Deeper, Broader and Artier Domain Generalization (ICCV 2017)",
    resized=True,
    arrays=("pacs64",),
    reader=DomainReader(
        folders=("pacs/kfold", "pacs", "PACS/kfold", "PACS", "kfold", ""),
        train_list="{}_train_kfold.txt",
        test_list="{}_crossval_kfold.txt",  # the published test lists repeat the training images
        lists_required=False,
    ),
    homepage="https://domaingeneralization.github.io",
    paper=DOMAINNET.paper,  # not a data set of the paper: it stands in for DomainNet
)
