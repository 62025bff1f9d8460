"""What the owner of a node says of it: wrong or missing keys are one sentence."""

import pytest

from fedaf.errors import UserError
from fedaf.transports.flower.node import Node

GOOD = {"client-id": "site-a", "data": "npz:/data/a.npz", "state-dir": "/state"}


def test_only_three_keys_are_needed():
    node = Node.read(GOOD)
    assert (node.client, node.data, str(node.state_dir)) == ("site-a", "npz:/data/a.npz", "/state")
    assert (node.policy, node.threads, node.device, node.model) == (None, None, None, None)


def test_a_number_may_be_a_client_id():
    assert Node.read({**GOOD, "client-id": 7}).client == "7"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"client-id": "a", "data": "npz:x"},
            "the node config has no 'state-dir'; needed are client-id, data, state-dir",
        ),
        ({**GOOD, "polcy": "x"}, "unknown key 'polcy' (did you mean 'policy'?)"),
        ({**GOOD, "client-id": "../a"}, "client-id is '../a'; allowed are letters"),
        ({**GOOD, "client-id": ".hidden"}, "client-id is '.hidden'"),
        ({**GOOD, "client-id": "a" * 65}, "at most 64"),
        (
            {**GOOD, "data": "cifar10"},
            "data is 'cifar10' in the node config; allowed is npz:FILE, folder:DIR, partition:N",
        ),
        ({**GOOD, "data": "npz:"}, "data is 'npz:'"),
        ({**GOOD, "data": "partition:first"}, "data is 'partition:first'"),
        ({**GOOD, "threads": "2"}, "threads is '2' in the node config, but must be a whole number"),
        ({**GOOD, "threads": 0}, "threads is 0 in the node config; it must be at least 1"),
        ({**GOOD, "policy": 1}, "policy is 1 in the node config, but must be a string"),
    ],
)
def test_what_is_wrong_is_named(given, sentence):
    with pytest.raises(UserError) as error:
        Node.read(given)
    assert sentence in str(error.value)


def test_a_node_keeps_its_identity_on_its_disk(tmp_path):
    here, there = (Node.read({**GOOD, "state-dir": str(tmp_path / place)}) for place in ("here", "there"))
    assert here.identity() == here.identity() != there.identity()
    assert len(here.identity()) == 32
    assert [file.name for file in here.folder.iterdir()] == ["identity"]


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"state-dir .*file cannot be written"):
        Node.read({**GOOD, "state-dir": str(tmp_path / "file")}).identity()
