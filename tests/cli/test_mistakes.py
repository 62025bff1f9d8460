"""Mistakes that users make: each ends with one sentence that names the remedy, its code, and exit status 2.

A row is the command line, the code of the error, and words that must be in the sentence. A new row needs no other line.
``test_bad_input.py`` has the mistakes that need files or several commands.
"""

import shlex

import pytest

from support.commandline import assert_one_sentence

MISTAKES = [
    # a command
    ("rn", "CLI-USAGE", ["'rn'", "Did you mean 'run'"]),
    ("data lst", "CLI-USAGE", ["'lst'", "'list'"]),
    ("data fetch", "CLI-USAGE", ["NAME"]),
    ("policy check", "CLI-USAGE", ["CONFIG"]),
    # the argument without a flag
    ("run digits", "CONFIG-READ", ["--dataset digits"]),
    ("run fedavg", "CONFIG-READ", ["--method fedavg"]),
    ("run settings.toml", "CONFIG-READ", ["settings.toml", "check its path"]),
    ("run table.csv", "CONFIG-TOML", ["table.csv", "line 1"]),
    ("run folder", "CONFIG-READ", ["config.toml", "--resume"]),
    ("run one.toml two.toml", "CLI-USAGE", ["two.toml"]),
    ("compare --methods fedavg fedprox", "CLI-METHODS", ["fedprox", "--methods fedaf,fedavg"]),
    ("compare --methods fedaf fedavg moon", "CLI-USAGE", ["moon", "--methods fedaf,fedavg"]),
    # names
    ("run --method FedAvg", "METHOD-UNKNOWN", ["did you mean 'fedavg'", "module:Class"]),
    ("run --method fed-prox", "METHOD-UNKNOWN", ["did you mean 'fedprox'"]),
    ("run --method fedavg,fedaf", "METHOD-UNKNOWN", ["'fedavg,fedaf'", "expected one of"]),
    ("compare --methods fedaf,fedagv", "METHOD-UNKNOWN", ["did you mean 'fedavg'"]),
    ("compare --methods fedaf,fedaf", "CLI-METHODS", ["once"]),
    ("compare --methods ,", "CLI-METHODS", ["fedaf,fedavg"]),
    ("run --dataset MNIST", "DATA-SET-UNKNOWN", ["did you mean 'mnist'"]),
    ("run --dataset fashion-mnist", "DATA-SET-UNKNOWN", ["did you mean 'fashionmnist'"]),
    ("run --dataset images/train", "DATA-SET-UNKNOWN", ["folder:DIR"]),
    ("run --model resnet50", "MODEL-UNKNOWN", ["did you mean 'resnet18'", "module:factory"]),
    ("run --model nowhere:make", "CUSTOM-LOAD", ["nowhere"]),
    ("run --preset default", "PRESET-UNKNOWN", ["paper or quick"]),
    ("run --engine cuda", "ENGINE-UNKNOWN", ["did you mean 'cuda-graphs'"]),
    ("run --device gpu", "DEVICE-UNKNOWN", ["cuda:N"]),
    ("run --precision fp16", "CONFIG-VALUE", ["'bf16'"]),
    ("run --format gif", "CLI-USAGE", ["svg", "pdf"]),
    ("settings --method fedav", "METHOD-UNKNOWN", ["'fedavg'"]),
    ("settings --dataset imagenet", "DATA-SET-UNKNOWN", ["digits"]),
    ("data fetch digit", "FETCH-UNKNOWN", ["did you mean 'digits'"]),
    ("data inspect nothing", "DATA-SET-UNKNOWN", ["npz:FILE"]),
    # condensed sets
    ("condense", "CLI-USAGE", ["DATASET"]),
    ("condense digit", "DATA-SET-UNKNOWN", ["did you mean 'digits'"]),
    ("condense digits --method fedavg", "CONDENSE-METHOD", ["fedavg", "feddm"]),
    ("condense digits --clients 3", "CLI-USAGE", ["--clients"]),
    ("condense digits --set partition.kind=iid", "CONDENSE-SETTING", ["partition.kind", "fedaf run"]),
    ("run --test-dataset digit", "DATA-SET-UNKNOWN", ["did you mean 'digits'"]),
    # flags and settings
    ("run --lr 0.1", "CLI-USAGE", ["method.server_lr"]),
    ("run --method fedavg --epochs 5", "CLI-USAGE", ["--set method.local_epochs=…"]),
    ("run --alhpa 0.1", "CLI-USAGE", ["'--alpha'"]),
    ("run --rounds", "CLI-USAGE", ["--rounds"]),
    ("run --set", "CLI-USAGE", ["--set"]),
    ("run --set lr=0.1", "CONFIG-SETTING", ["table.key"]),
    ("run --set method.gamma", "CONFIG-SETTING", ["table.key=value"]),
    ("run --set method:gamma=1", "CONFIG-SETTING", ["table.key"]),
    ("run --set methods.gamma=1", "CONFIG-TABLE", ["did you mean 'method'"]),
    ("run --set method.local_step=1", "CONFIG-KEY", ["did you mean 'local_steps'"]),
    ("run --method fedavg --ipc 5", "CONFIG-KEY", ["method.ipc", "fedavg"]),
    ("run --set partition.kind=dirichlett", "PARTITION-UNKNOWN", ["did you mean 'dirichlet'"]),
    ("run --set training.augment=flip", "CONFIG-VALUE", ["for example ['flip']"]),
    ("run --set 'training.augment=[\"flop\"]'", "AUGMENTATION-UNKNOWN", ["did you mean 'flip'"]),
    ("run --set model.norm=layer", "CONFIG-VALUE", ["'group'"]),
    ("run --set model.keep_weights=yes", "CONFIG-VALUE", ["model.keep_weights", "boolean"]),
    # values
    ("run --rounds 1.5", "CLI-USAGE", ["integer"]),
    ("run --rounds 0", "CONFIG-VALUE", ["greater than or equal to 1"]),
    ("run --alpha 0,1", "CLI-USAGE", ["'0,1'", "float"]),
    ("run --alpha 0", "CONFIG-VALUE", ["greater than 0"]),
    ("run --participation 50", "CONFIG-VALUE", ["less than or equal to 1"]),
    ("run --seed abc", "CLI-USAGE", ["integer"]),
    ("run --local-steps -1", "CONFIG-VALUE", ["method.local_steps"]),
    ("run --memory-budget 0", "CONFIG-VALUE", ["run.memory_budget_mib"]),
    ("run --set federation.quorum=2", "CONFIG-VALUE", ["federation.quorum"]),
    ("compare --target 900", "CLI-TARGET", ["at most 100"]),
    # what does not fit together
    ("run --verbose --quiet", "CLI-VERBOSITY", ["use one of them"]),
    ("run --engine cuda-graphs --device cpu", "ENGINE-DEVICE", ["eager"]),
    ("run --alpha 0.1 --set partition.kind=iid", "CONFIG-NO-EFFECT", ["partition.kind"]),
    ("run --clients 5000", "PARTITION-TOO-FEW", ["--clients"]),
    ("run --set data.validation=100000", "DATA-VALIDATION", ["data.validation"]),
    ("run --set model.depth=6", "MODEL-DEPTH", ["lower model.depth"]),
    ("run --set model.norm=group --set model.groups=3", "MODEL-NORM", ["1, 2, 4, 8"]),
    ("run --model resnet18 --set model.norm=instance", "MODEL-NORM", ["model.norm=group"]),
    ("run --set model.keep_weights=true", "MODEL-KEEP-WEIGHTS", ["leave it out"]),
    ("run --set model.output=0", "MODEL-OUTPUT", ["model.output", "leave it out"]),
    ("run --ipc 500", "CONDENSE-NO-CLASS", ["lower method.ipc"]),
    ("run --set method.init=real", "CONFIG-VALUE", ["allow_real_init"]),
    # files
    ("run --weights nowhere.safetensors", "MODEL-WEIGHTS-READ", ["nowhere.safetensors", "safetensors file"]),
    ("run --weights table.csv", "MODEL-WEIGHTS-READ", ["save_file"]),
    ("run --dataset cifar10", "DATA-NOT-FOUND", ["--data-dir"]),
    ("run --dataset npz:", "DATA-NAME", ["path"]),
    ("run --dataset npz:nowhere.npz", "DATA-NOT-FOUND", ["nowhere.npz"]),
    ("run --dataset npz:table.csv", "DATA-DAMAGED", ["x_train"]),
    ("run --dataset folder:nowhere", "DATA-NOT-FOUND", ["folder of images for each class"]),
    ("run --dataset folder:folder", "DATA-LAYOUT", ["class folders"]),
    ("data inspect digits --out sheet.jpg", "CLI-SHEET", [".png"]),
    ("run --policy nowhere.toml", "CONFIG-READ", ["nowhere.toml"]),
    ("policy show nowhere.toml", "CONFIG-READ", ["nowhere.toml"]),
    ("policy check nowhere.toml", "CONFIG-READ", ["nowhere.toml"]),
    # directories of runs
    ("run --out table.csv", "RUN-NOT-A-DIRECTORY", ["another --out"]),
    ("run --out used", "RUN-DIRECTORY-IN-USE", ["--resume used"]),
    ("run --out table.csv/run", "CLI-FILE", ["table.csv"]),
    ("run --resume nowhere", "RUN-NOT-FOUND", ["fedaf run wrote"]),
    ("run --resume nowhere --seed 1", "CLI-RESUME", ["leave out --seed"]),
    ("compare --resume nowhere --methods fedaf", "CLI-RESUME", ["leave out --methods"]),
    ("compare --resume folder", "CLI-NOT-A-COMPARISON", ["fedaf compare wrote"]),
]


@pytest.mark.parametrize(("line", "code", "words"), MISTAKES, ids=[line for line, _, _ in MISTAKES])
def test_a_mistake_is_one_sentence_with_its_remedy(call, tmp_path, line, code, words):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "letter.txt").write_text("dear")
    before = sorted(tmp_path.rglob("*"))
    status, out, err = call(*shlex.split(line))
    assert_one_sentence(status, err, [f"[FEDAF-{code}]", *words])
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before
