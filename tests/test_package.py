"""``import fedaf``: what a user sees first."""

import pydoc
import subprocess
import sys

import fedaf


def test_help_shows_the_public_functions_and_their_arguments():
    names = {"run", "start", "resume", "compare", "load", "RunResult", "Observer", "TrainedModel", "__version__"}
    assert names <= set(dir(fedaf))
    text = pydoc.plain(pydoc.render_doc(fedaf))
    assert "run(" in text
    assert "start(" in text
    assert "compare(" in text
    assert "load(" in text
    assert "resume(" in text
    assert "class Observer" in text
    assert "class RunResult" in text
    assert "local_steps: Condensation steps" in text


def test_a_run_does_not_import_what_it_does_not_need(tmp_path):
    """PyTorch's compiler takes over a second to import, which is most of the time before the first step."""
    program = (
        "import sys, fedaf\n"
        "for method in ('fedaf-plus', 'feddm', 'fedavg', 'feddyn'):\n"
        "    settings = {'run.device': 'cpu', 'model.width': 8}\n"
        "    fedaf.run(method=method, preset='quick', rounds=1, out=method, settings=settings)\n"
        "print(sorted({'torch._dynamo', 'torch._inductor', 'flwr', 'ray'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
