"""A client on its own machine: a process for each message, its state on its own disk in between."""

from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Say whose data lie here: Flower numbers its nodes as they come."""
    partition = ConfigRecord({"partition-id": int(context.node_config["partition-id"])})
    return Message(RecordDict({"hello": partition}), reply_to=message)


@app.train("phase")
def work(message: Message, context: Context) -> Message:
    """One phase of one round: this client's share of what ``LocalTransport`` does for all."""
    from wire import experiment_of, from_records, to_records  # with torch: seconds that a hello need not wait for

    from fedaf.federation.client_state import ClientState
    from fedaf.federation.serving import serve
    from fedaf.federation.transport import Replied, Request

    request, experiment = Request.decode(from_records(message.content)), experiment_of(context)
    shards = experiment.partition.shards(experiment.dataset)
    name = list(shards)[int(context.node_config["partition-id"])]
    file = Path(str(context.node_config["state-dir"])) / f"{name}.safetensors"
    phase = experiment.method.phase(request.phase)
    served = serve(phase, {name: request}, shards, {name: ClientState.read(file)}, experiment.engine)
    _, delivery, state = next(served)
    state.write(file)
    assert isinstance(delivery, Replied)
    return Message(to_records(delivery.payload.encode()), reply_to=message)
