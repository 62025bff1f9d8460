"""The official files of the data sets: where they are, how long they are, and their checksums.

Every SHA-256 here was found in two independent public lists, or, for four of DomainNet's archives (infograph,
quickdraw, real, sketch), in one list whose lengths agree with a second list of MD5 sums. FashionMNIST's were also
computed from the files themselves. So an address without TLS does no harm: what it sends is checked.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Remote:
    """One file to download. ``folder`` names what an archive unpacks to; a file without it is used as it is."""

    url: str
    sha256: str
    size: int
    folder: str | None = None

    @property
    def name(self) -> str:
        """Its name on disk, which is never the server's choice."""
        return self.url.rpartition("/")[2]


def _idx(base: str, facts: dict[str, tuple[int, str]]) -> tuple[Remote, ...]:
    return tuple(Remote(f"{base}/{name}-ubyte.gz", sha256, size) for name, (size, sha256) in facts.items())


_MNIST = _idx(
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    {
        "train-images-idx3": (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        "train-labels-idx1": (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        "t10k-images-idx3": (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        "t10k-labels-idx1": (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    },
)
_FASHIONMNIST = _idx(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",  # this kind of address has no TLS
    {
        "train-images-idx3": (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        "train-labels-idx1": (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        "t10k-images-idx3": (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        "t10k-labels-idx1": (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    },
)
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_CIFAR10 = Remote(
    f"{_CIFAR}/cifar-10-python.tar.gz",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    170498071,
    "cifar-10-batches-py",
)
_CIFAR100 = Remote(
    f"{_CIFAR}/cifar-100-python.tar.gz",
    "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    169001437,
    "cifar-100-python",
)
_DOMAINNET = "https://csr.bu.edu/ftp/visda/2019/multi-source"
_DOMAINNET_LISTS = {
    "clipart_train": (1443819, "affdadf5f95a7583e6b98030a3d35007e2613ee4dd942393c5a705ec2b429312"),
    "clipart_test": (628917, "62c8e36aaba1c41ad9e249099739707220a44c08f167b37ef420f34a31628a6b"),
    "infograph_train": (1683098, "36b44cbd41a2915e0dc73b4f4be8862a6f3c220f93c8d63fb2439beeae3aefda"),
    "infograph_test": (728028, "413cfa54ac92e7e6b242f4f09fbd9c8ace85c4deaf3cb6c81ff6b68264460136"),
    "painting_train": (2241901, "f1da38d50a702fddf1329f85bc607d7a2abcae7e6aec75e1fd49cc1bd340d47b"),
    "painting_test": (971888, "11472b13b5188e09f06918b12eebb660588c97a20e43e268d9b02e3e37eb8f97"),
    "quickdraw_train": (5164600, "3a5edd3bc215772010eebc87f158707703dd7e48091d13b816af81326a9d1c0f"),
    "quickdraw_test": (2213400, "2a00a60650a453c65c356da748fec54084a197272137c440e7d52d08947357bf"),
    "real_train": (4440944, "19d483256d24aef19e581b65eda8333fd918aef3eb733fe499ff384120e3a289"),
    "real_test": (1911327, "2b3f75bcde309aeb5931292084b2162e936b5f189e3bb1ad716f0f74c460864c"),
    "sketch_train": (1960222, "72f4bc6afa5702a1ccba800d0053c1427de87439dfaf246dbc9a2e71abfec54f"),
    "sketch_test": (850581, "3fb48fca18c507c4321f007c3f62b308ec232ff6928cbfe2af64e76ec366e840"),
}
_DOMAINNET_ARCHIVES = {  # of the cleaned version; two of them moved when it replaced the first
    "groundtruth/clipart": (1270909081, "f8f248a3e8bbc9868c523ae24e6601b4c2ad102afc60c0efeb4f3255df22354d"),
    "infograph": (4338659804, "891e14f476317e97b6f06d6498c11d0a5b8d0c8b57210765ed9beb072da611fa"),
    "groundtruth/painting": (3679366174, "fa47e6d405503ea0286cabd767f176bd30e988b63ddd7b9db16cf030c9770015"),
    "quickdraw": (459920701, "9f37df2a8c3733703dbb35ad9964202a65f675ca30137756457537536b485d84"),
    "real": (6062039589, "d7fe010b430c5b510f85d657d38c4a1924822695fabea4fef57bd00dba251d63"),
    "sketch": (2633992926, "23a7dbae7016b343e934399beaa8a68728fb5e570ebe2c71df9b75cf91c499fc"),
}

REMOTES: dict[str, tuple[Remote, ...]] = {
    "mnist": _MNIST,
    "fashionmnist": _FASHIONMNIST,
    "cifar10": (_CIFAR10,),
    "cifar100": (_CIFAR100,),
    "domainnet": (
        *(
            Remote(f"{_DOMAINNET}/domainnet/txt/{name}.txt", sha256, size)
            for name, (size, sha256) in _DOMAINNET_LISTS.items()
        ),
        *(
            Remote(f"{_DOMAINNET}/{name}.zip", sha256, size, folder=name.rpartition("/")[2])
            for name, (size, sha256) in _DOMAINNET_ARCHIVES.items()
        ),
    ),
}
