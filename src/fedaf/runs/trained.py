"""Loading the models of a finished or stopped run: ``fedaf.load``."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from torch import nn

from fedaf.client.state import ClientState
from fedaf.common.naming import nearest
from fedaf.config.tables import ModelTable
from fedaf.config.toml import validate
from fedaf.data import catalog
from fedaf.federation import checkpoint, model_folder
from fedaf.federation.model_folder import Kept, ModelCard, Which
from fedaf.federation.run_directory import CONFIG
from fedaf.methods.registry import METHODS
from fedaf.models import custom
from fedaf.models.custom import Factory
from fedaf.protocol import Key, Method, Tensors, UserError
from fedaf.runs import assembly
from fedaf.runs.composition import model_card, must_fit
from fedaf.runs.model import TrainedModel


def load(
    run: str | Path,
    *,
    which: str | None = None,
    client: str | None = None,
    model: nn.Module | Factory | None = None,
) -> TrainedModel:
    """Load a model of a run. The training data are not needed.

    Args:
        run: The run directory.
        which: ``last`` is the model after the last round; ``best`` the one with the best accuracy on the images that
            ``data.selection`` set aside. Unset: ``best`` if there are such images, else ``last``.
        client: Load the personal model of this client, for methods that have such models.
        model: The model that was passed to ``fedaf.run``, if it was not a name.

    Returns:
        The model, with ``predict``, ``predict_proba``, ``classes`` and ``module``.

    Raises:
        UserError: ``run`` is not a run directory, has no such model, or is of another model than ``model``.

    Example:
        >>> model = fedaf.load("runs/first")
        >>> model.predict_proba("photos")
    """
    path = Path(run)
    must_be_a_run(path)
    if which not in (None, *get_args(Which)):
        raise _wrong_which(f"which is {which!r}{nearest(str(which), get_args(Which))}; expected last or best.")
    saved = _saved(path, model)
    if client is None:
        saved.must_have_a_global_model()
        chosen = saved.choose(which)
        round, weights = saved.card.files[chosen].round, saved.weights(chosen)
    else:
        chosen = "last"
        if which == "best":
            raise _wrong_which("personal models are kept for the last round only; leave out best, or the client.")
        round, weights = saved.personal(client)
    network = saved.method.build_model(Key(0))
    must_fit(network, weights, path, name=saved.card.model["name"])
    network.load_state_dict(dict(weights))
    return TrainedModel(network.eval(), saved.card, chosen, round, client)


@dataclass(frozen=True)
class _Saved:
    """The models that a run has saved.

    Args:
        path: The run directory.
        card: Describes the models.
        method: The method, which builds the network.
        last: The last model, if the run is of a version of fedaf that had only checkpoints.
    """

    path: Path
    card: ModelCard
    method: Method
    last: Tensors | None = None

    def must_have_a_global_model(self) -> None:
        if not self.method.has_global_model:
            clients = ", ".join(sorted(checkpoint.load(self.path, None).clients))
            what = f"{self.card.method['name']} has no global model, only those of its clients"
            raise UserError(f"{what}; name one of the clients {clients}.", code="FEDAF-MODEL-NOT-GLOBAL")

    def choose(self, which: str | None) -> Which:
        for name in self.card.files:
            if name == (which or self.card.which):
                return name
        what = f"the run in {self.path} has no best model, because no images were set aside to choose it by"
        raise _wrong_which(f"{what}; use last, or start a run with data.selection.")

    def weights(self, which: Which) -> Tensors:
        return model_folder.read_weights(self.path, which) if self.last is None else self.last

    def personal(self, client: str) -> tuple[int, Tensors]:
        """Return the round and the weights of a client's personal model."""
        saved, name = checkpoint.load(self.path, None), self.card.method["name"]
        records = {one: ClientState.from_tensors(tensors) for one, tensors in saved.clients.items()}
        state = records[client].settled(saved.accepted.get(client, 0)) if client in records else {}
        weights = self.method.personal_weights(saved.server.model, state)
        if weights is None:
            what = f"{name} has no personal models, only a global one; leave out the client."
            raise UserError(what, code="FEDAF-MODEL-NOT-PERSONAL")
        if not records:
            what = f"the personal models of the run in {self.path} stayed with their clients, as they do over a network"
            raise UserError(f"{what}; leave out the client for the global model.", code="FEDAF-MODEL-NOT-PERSONAL")
        if not state:
            known = [one for one, record in sorted(records.items()) if record.settled(saved.accepted.get(one, 0))]
            what = f"there is no personal model of a client {client!r}{nearest(client, known)}"
            raise UserError(f"{what}; expected one of {', '.join(known)}.", code="FEDAF-MODEL-CLIENT")
        return saved.server.round, weights


def _saved(path: Path, given: nn.Module | Factory | None) -> _Saved:
    """Find the models of a run; ``given`` is the model that was passed from Python."""
    card = model_folder.read_card(path)
    if card is None:
        return _saved_by_older_version(path, given)
    names = dict(card.method)
    found = METHODS.find(str(names.pop("name")))
    options = validate(found.Options, names, table="method", owner=f"method {card.method['name']}")
    table = validate(ModelTable, card.model, table="model")
    factory = custom.find(table, given)
    architecture = assembly.architecture_for(table, card.seed, card.task, factory)
    return _Saved(path, card, found(options, card.task, architecture))


def _saved_by_older_version(path: Path, given: nn.Module | Factory | None) -> _Saved:
    """Find the last model of a run in its checkpoint, and how to use it in its configuration."""
    saved = checkpoint.load(path, None).server if checkpoint.exists(path) else None
    if saved is None or saved.round == 0:
        what = f"the run in {path} has not finished its first round, so it has no model yet"
        raise UserError(f"{what}; continue it with fedaf run --resume {path}.", code="FEDAF-RUN-NO-ROUND")
    config = assembly.config_of_run(path)
    is_known = catalog.find_spec(config.data.name) is not None or config.data.shape is not None
    if is_known:
        spec = assembly.spec_for(config)
        task, classes = assembly.task_for(config, spec.shape, spec), spec.classes
    else:  # only the data say what they are
        data = assembly.data_for(config, Path(config.data.dir))
        task, classes = assembly.task_for(config, data.train.images.shape[1:], data), data.classes
    factory = custom.find(config.model, given)
    architecture = assembly.architecture_for(config.model, config.run.seed, task, factory)
    method = assembly.method_for(config, task, architecture)
    card = replace(model_card(config, method, classes), files={"last": Kept(saved.round)})
    return _Saved(path, card, method, saved.model)


def must_be_a_run(path: Path) -> None:
    """Raise ``UserError`` if a path is not the directory of one run."""
    if (path / CONFIG).is_file():
        return
    runs = sorted(str(found.parent) for depth in ("*", "*/*") for found in path.glob(f"{depth}/{CONFIG}"))
    if runs:
        raise UserError(f"{path} holds several runs; name one of {', '.join(runs)}.", code="FEDAF-RUN-SEVERAL")
    what = f"{path} is not the directory of a run: it has no {CONFIG}"
    raise UserError(f"{what}; give a directory that fedaf run wrote.", code="FEDAF-RUN-NOT-FOUND")


def _wrong_which(message: str) -> UserError:
    return UserError(message, code="FEDAF-MODEL-WHICH")
