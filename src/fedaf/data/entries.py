"""What is known of the data sets of the catalog before any file is read."""

from dataclasses import dataclass

NO_DATA = "none"  # the name of a server's data where it has none: its clients have them

_OWN_MEAN, _OWN_STD = 0.5, 0.25  # nobody in a federation holds the training split, so own data get constants
_DIGITS = tuple("0123456789")
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}  # customary for photographs of all domains


@dataclass(frozen=True)
class DatasetSpec:
    """Shape and number of classes, the published constants to normalise with, and the names where they are fixed.
    ``resized`` sets are image files of many sizes: their shape is what they are made to by default."""

    shape: tuple[int, int, int]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    resized: bool = False


def custom_spec(shape: tuple[int, int, int], classes: tuple[str, ...]) -> DatasetSpec:
    """Of data that are not in the catalog."""
    return DatasetSpec(shape, len(classes), (_OWN_MEAN,) * shape[0], (_OWN_STD,) * shape[0], classes)


CATALOG = {
    "digits": DatasetSpec((1, 8, 8), 10, (0.305,), (0.376,), _DIGITS),
    "mnist": DatasetSpec((1, 28, 28), 10, (0.1307,), (0.3081,), _DIGITS),
    "fashionmnist": DatasetSpec(
        (1, 28, 28),
        10,
        (0.2860,),
        (0.3530,),
        ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    "cifar10": DatasetSpec(
        (3, 32, 32),
        10,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": DatasetSpec((3, 32, 32), 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "pacs": DatasetSpec(
        (3, 64, 64),
        7,
        **_IMAGENET,
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        domains=("art_painting", "cartoon", "photo", "sketch"),
        resized=True,
    ),
    "domainnet": DatasetSpec(
        (3, 64, 64),
        10,
        **_IMAGENET,
        classes=(
            *("bird", "feather", "headphones", "ice_cream", "teapot"),
            *("tiger", "whale", "windmill", "wine_glass", "zebra"),
        ),
        domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        resized=True,
    ),
}
