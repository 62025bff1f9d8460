"""What users of other programs call our settings: ``--lr`` means ``method.server_lr`` to FedAF."""

from collections.abc import Sequence

from fedaf.config.flags import FLAGS
from fedaf.config.tables import TABLES
from fedaf.methods.registry import METHODS

#: The settings that a name may mean. Those that a method does not have are left out of suggestions.
_SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lr", "learning_rate", "local_lr"), ("method.lr", "method.server_lr", "method.image_lr")),
    **dict.fromkeys(
        ("epochs", "epoch", "local_epochs", "local_ep", "num_epochs"),
        ("method.local_epochs", "method.server_epochs", "method.local_steps"),
    ),
    **dict.fromkeys(
        ("batch_size", "batch", "local_bs", "bs"), ("method.batch_size", "method.server_batch", "method.real_batch")
    ),
    "momentum": ("method.momentum", "method.server_momentum", "method.image_momentum"),
    **dict.fromkeys(("weight_decay", "wd"), ("method.weight_decay",)),
    **dict.fromkeys(("gpu", "gpus", "cuda", "cpu", "mps", "gpu_id"), ("run.device",)),
    **dict.fromkeys(("workers", "num_workers", "jobs", "processes"), ("run.clients_at_once", "run.threads")),
    **dict.fromkeys(("num_threads", "n_threads"), ("run.threads",)),
    **dict.fromkeys(("fp16", "amp", "dtype", "mixed_precision"), ("run.precision",)),
    **dict.fromkeys(("num_rounds", "comm_round", "comm_rounds", "global_epochs", "global_rounds"), ("run.rounds",)),
    **dict.fromkeys(("random_seed", "random_state"), ("run.seed",)),
    **dict.fromkeys(("num_clients", "n_clients", "num_users", "n_parties"), ("partition.clients",)),
    **dict.fromkeys(("beta", "dirichlet", "dirichlet_alpha", "dir_alpha"), ("partition.alpha",)),
    **dict.fromkeys(("partition", "iid", "noniid", "split"), ("partition.kind",)),
    **dict.fromkeys(("frac", "fraction", "sample_rate", "join_ratio"), ("federation.participation",)),
    **dict.fromkeys(("algorithm", "alg", "algo", "strategy"), ("method.name",)),
    **dict.fromkeys(("arch", "architecture", "network", "net"), ("model.name",)),
    **dict.fromkeys(("pretrained", "checkpoint", "init_weights", "load"), ("model.weights",)),
    **dict.fromkeys(("data", "data_set"), ("data.name",)),
    **dict.fromkeys(("data_path", "datadir", "root", "data_root"), ("data.dir",)),
    **dict.fromkeys(("images_per_class", "num_images"), ("method.ipc",)),
    **dict.fromkeys(("steps", "iterations", "num_steps"), ("method.local_steps",)),
    **dict.fromkeys(("augment", "augmentation", "dsa"), ("training.augment",)),
    **dict.fromkeys(("num_classes", "n_classes"), ("data.classes",)),
}


def meant(name: str, methods: Sequence[str]) -> dict[str, str]:
    """Return the settings that ``name`` may mean for these methods, with what each one is.

    Args:
        name: A flag or keyword argument that does not exist; dashes count as underscores.
        methods: The methods of the command; unknown ones are ignored.
    """
    key = name.strip("-").replace("-", "_").lower()
    tables = [*TABLES.items(), *(("method", METHODS.find(each).Options) for each in methods if each in METHODS)]
    known = {f"{table}.{each}": field for table, model in tables for each, field in model.model_fields.items()}
    same = [path for path in known if path.partition(".")[2] == key]
    found = [path for path in dict.fromkeys((*same, *_SYNONYMS.get(key, ()))) if path in known]
    return {path: (known[path].description or "").partition(";")[0] for path in found}


def spelled(path: str) -> str:
    """Return how a command line sets a setting: ``--alpha …``, or ``--set method.lr=…`` if it has no flag."""
    flag = next((flag.option for flag in FLAGS.values() if flag.path == path), None)
    return f"--set {path}=…" if flag is None else f"{flag} …"
