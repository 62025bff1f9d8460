"""``import fedaf``: what a user sees first."""

import pydoc

import fedaf


def test_help_shows_the_public_functions_and_their_arguments():
    assert {"run", "resume", "RunResult", "__version__"} <= set(dir(fedaf))
    text = pydoc.plain(pydoc.render_doc(fedaf))
    assert "run(" in text
    assert "resume(" in text
    assert "class RunResult" in text
    assert "local_steps: Condensation steps" in text
