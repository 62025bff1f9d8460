"""JSON that people read: keys on lines of their own, lists of numbers on one."""

import json

import pytest

from fedaf.common.readable import readable_json

VALUE = {
    "name": 'é\n"',
    "curve": [1.5, None, 3],
    "matrix": [[1, 2], [3, 4]],
    "clients": {"a": {"images": {}, "classes": []}, "b": [{"x": 1}, {}]},
    "nothing": None,
    "true": True,
}


@pytest.mark.parametrize("value", [VALUE, {}, [], [[]], 1.5, "x", None, [1, 2], {"a": (1, (2,))}])
def test_it_is_the_same_json(value):
    assert json.loads(readable_json(value)) == json.loads(json.dumps(value))


def test_a_list_of_numbers_is_one_line_and_a_matrix_a_line_a_row():
    assert readable_json({"curve": [1, 2], "matrix": [[1, 2], [3, 4]], "of": {"a": 1}}) == (
        '{\n  "curve": [1, 2],\n  "matrix": [\n    [1, 2],\n    [3, 4]\n  ],\n  "of": {\n    "a": 1\n  }\n}'
    )
