"""FedAF+: FedAF with changes that were chosen on held-out training images; docs/METHODS.md has their effect.

Everything is an option of FedAF, and this class differs only in their values:

- Condensation: the networks of the steps are at a fixed distance from the global model (``rho``). Every round starts
  from new images (``continue_images``), which are means of clusters of similar images (``init``). Each image matches
  its own cluster (``match_clusters``), and the standard deviations of features are matched too (``match_spread``). The
  weight of the CDC loss is large enough to act (``lambda_loc``).
- Server: it trains on the images of earlier rounds too (``replay``), with CutMix (``server_cutmix``), and averages the
  weights over its steps (``server_ema``).
"""

from fedaf.methods.fedaf import FedAF, FedAFOptions


class FedAFPlusOptions(FedAFOptions):
    """Options of FedAF+."""


class FedAFPlus(FedAF):
    """FedAF with other defaults."""

    Options = FedAFPlusOptions
    title = "FedAF+"
    family = "fedaf-plus"
    version = 1
