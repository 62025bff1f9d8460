"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017).

Clients train the global model on their own data; the server averages what they return, weighted by their samples.
"""

from fedaf.methods.averaging import AveragingMethod


class FedAvg(AveragingMethod):
    """The plain case of ``fedaf.methods.averaging``: nothing is added."""
