"""The server: the federation of an in-process run, over another transport."""

from pathlib import Path

from flower_transport import FlowerTransport, meet
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from wire import experiment_of

from fedaf.federation.federation import Federation
from fedaf.federation.observer import Observer
from fedaf.federation.rounds import Terms
from fedaf.federation.run_directory import RunDirectory
from fedaf.protocol import Key

app = ServerApp()

_MEET_SECONDS = 60.0


@app.main()
def main(grid: Grid, context: Context) -> None:
    experiment = experiment_of(context)
    config, data = experiment.config, experiment.dataset
    clients = list(experiment.partition.rows)
    federation = Federation(
        method=experiment.method,
        transport=FlowerTransport(grid, meet(grid, clients, seconds=_MEET_SECONDS)),
        clients=clients,
        test=data.test,
        domains=data.domains,
        engine=experiment.engine,
        directory=RunDirectory.create(Path(str(context.run_config["out"]))),
        terms=Terms(config.federation.participation, config.federation.quorum, config.federation.deadline),
        rounds=config.run.rounds,
    )
    federation.run(federation.start(Key(config.run.seed)), Observer())
