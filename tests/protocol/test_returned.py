"""An author's slip in what a method returns is one sentence that names the function."""

import pytest
import torch

import fedaf
from support.errors import raises
from support.small import SMALL
from support.tally import Count


@pytest.mark.parametrize(
    ("function", "value", "code", "words"),
    [
        (
            "aggregate",
            lambda *_: None,
            "FEDAF-METHOD-RETURN",
            ["aggregate of the phase count", "NoneType", "ServerState"],
        ),
        ("work_one", lambda *_: {}, "FEDAF-QUORUM", ["work_one of the phase count", "dict", "Outcome"]),
        (
            "aggregate",
            lambda _, server, replies: server.with_log(noise=torch.zeros(1)),
            "FEDAF-METHOD-LOG",
            ["round 1", "Tensor", "with_log"],
        ),
        ("aggregate", lambda _, server, replies: server.with_log(drift=float("nan")), "FEDAF-METHOD-LOG", ["round 1"]),
    ],
)
def test_a_wrong_return_value_is_one_sentence(function, value, code, words, monkeypatch):
    monkeypatch.setattr(Count, function, value)
    with raises(code) as error:
        fedaf.run(**SMALL, method="support.tally:Tally")
    assert all(word in str(error.value) for word in words)
