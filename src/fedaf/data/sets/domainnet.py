"""DomainNet: six domains of photographs and drawings; the ten classes that FedBN chose."""

from fedaf.data.readers.domains import DomainReader
from fedaf.data.spec import AUGMENT, FEDAF_PLUS, IMAGENET_MEAN, IMAGENET_STD, DatasetSpec, OfficialFile

_SERVER = "https://csr.bu.edu/ftp/visda/2019/multi-source"
_LISTS = {
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
_ARCHIVES = {  # the cleaned version; two archives moved when it replaced the first version
    "groundtruth/clipart": (1270909081, "f8f248a3e8bbc9868c523ae24e6601b4c2ad102afc60c0efeb4f3255df22354d"),
    "infograph": (4338659804, "891e14f476317e97b6f06d6498c11d0a5b8d0c8b57210765ed9beb072da611fa"),
    "groundtruth/painting": (3679366174, "fa47e6d405503ea0286cabd767f176bd30e988b63ddd7b9db16cf030c9770015"),
    "quickdraw": (459920701, "9f37df2a8c3733703dbb35ad9964202a65f675ca30137756457537536b485d84"),
    "real": (6062039589, "d7fe010b430c5b510f85d657d38c4a1924822695fabea4fef57bd00dba251d63"),
    "sketch": (2633992926, "23a7dbae7016b343e934399beaa8a68728fb5e570ebe2c71df9b75cf91c499fc"),
}

SPEC = DatasetSpec(
    name="domainnet",
    title="DomainNet",
    samples="see its lists",
    shape=(3, 64, 64),
    num_classes=10,
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    classes=(
        *("bird", "feather", "headphones", "ice_cream", "teapot"),
        *("tiger", "whale", "windmill", "wine_glass", "zebra"),
    ),
    domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    licence="a fair use notice of the authors, for non-commercial use; read it at the source",
    source="Peng et al., Moment Matching for Multi-Source Domain Adaptation (ICCV 2019), https://ai.bu.edu/M3SDA/",
    resized=True,
    reader=DomainReader(
        folders=("domainnet", "DomainNet", ""),
        train_list="{}_train.txt",
        test_list="{}_test.txt",
        other_classes=True,
    ),
    # The checksums of infograph, quickdraw, real and sketch are from one public list, whose sizes agree with a second
    # list of MD5 sums. All others, and those of the other data sets, are from two independent public lists.
    files=(
        *(OfficialFile(f"{_SERVER}/domainnet/txt/{name}.txt", sha256, size) for name, (size, sha256) in _LISTS.items()),
        *(
            OfficialFile(f"{_SERVER}/{name}.zip", sha256, size, folder=name.rpartition("/")[2])
            for name, (size, sha256) in _ARCHIVES.items()
        ),
    ),
    paper={
        "run": {"rounds": 10},
        "training": {"augment": AUGMENT},
        "condensing": {"ipc": 20},
        "fedaf": {"image_lr": 1.0, "lambda_loc": 0.01, "lambda_glob": 0.1},
        "fedaf-plus": FEDAF_PLUS,
    },
)
