"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017).

Clients train the global model on their own data; the server averages the results, weighted by the clients' samples.
"""

from fedaf.methods.averaging import AveragingMethod


class FedAvg(AveragingMethod):
    """Exactly what ``fedaf.methods.averaging`` does."""

    title = "FedAvg"
