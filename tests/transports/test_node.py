"""What the owner of a node says of it: wrong or missing keys are one sentence."""

import pytest

from fedaf.transports.flower.node import Node
from support.errors import raises

GOOD = {"client-id": "site-a", "data": "npz:/data/a.npz", "state-dir": "/state"}


def test_only_three_keys_are_needed():
    node = Node.read(GOOD)
    assert (node.client, node.data, str(node.state_dir)) == ("site-a", "npz:/data/a.npz", "/state")
    assert (node.policy, node.threads, node.device, node.model) == (None, None, None, None)


def test_a_number_may_be_a_client_id():
    assert Node.read({**GOOD, "client-id": 7}).client == "7"


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (
            {"client-id": "a", "data": "npz:x"},
            "FEDAF-NODE-CONFIG",
            "'state-dir' client-id, data, state-dir",
        ),
        ({**GOOD, "polcy": "x"}, "FEDAF-NODE-CONFIG", "'polcy' 'policy'"),
        ({**GOOD, "client-id": "../a"}, "FEDAF-NODE-CLIENT-ID", "'../a'"),
        ({**GOOD, "client-id": ".hidden"}, "FEDAF-NODE-CLIENT-ID", "'.hidden'"),
        ({**GOOD, "client-id": "a" * 65}, "FEDAF-NODE-CLIENT-ID", "64"),
        (
            {**GOOD, "data": "cifar10"},
            "FEDAF-NODE-DATA",
            "'cifar10' npz:FILE folder:DIR partition:N",
        ),
        ({**GOOD, "data": "npz:"}, "FEDAF-NODE-DATA", "'npz:'"),
        ({**GOOD, "data": "partition:first"}, "FEDAF-NODE-DATA", "'partition:first'"),
        ({**GOOD, "threads": "2"}, "FEDAF-NODE-CONFIG", "threads '2' integer"),
        ({**GOOD, "threads": 0}, "FEDAF-NODE-CONFIG", "threads 0 1"),
        ({**GOOD, "policy": 1}, "FEDAF-NODE-CONFIG", "policy 1 string"),
    ],
)
def test_what_is_wrong_is_named(given, code, words):
    with raises(code) as error:
        Node.read(given)
    assert all(word in str(error.value) for word in words.split())


def test_a_node_keeps_its_identity_on_its_disk(tmp_path):
    here, there = (Node.read({**GOOD, "state-dir": str(tmp_path / place)}) for place in ("here", "there"))
    assert here.identity() == here.identity() != there.identity()
    assert len(here.identity()) == 32
    assert [file.name for file in here.folder.iterdir()] == ["identity"]


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with raises("FEDAF-NODE-STATE-DIR") as error:
        Node.read({**GOOD, "state-dir": str(tmp_path / "file")}).identity()
    assert str(tmp_path / "file") in str(error.value)
