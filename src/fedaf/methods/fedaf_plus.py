"""FedAF+: FedAF with changes that were chosen on held-out training images; docs/reference/methods.md has their effect.

Every change is an option of FedAF, and most of them are options of all condensing methods. This method differs from
FedAF only in their values:

- Condensation: the networks of the steps are at a fixed distance from the global model (``resampling``). Every round
  starts from new images (``continue_images``), which are means of clusters of similar images (``init``), and matches
  the samples of these clusters instead of the whole class (``match_clusters``). Besides the mean features, their
  standard deviations (``match_spread``) and their whole distribution (``match_distribution``) are matched. The learning
  rate of the images falls to 0 (``image_lr_decay``). The CDC loss has a weight that acts (``lambda_loc``).
- Server: it trains on the images of earlier rounds too (``replay``), for a fixed number of steps (``server_steps``),
  with CutMix (``server_cutmix``), and averages the weights over its last steps (``server_average``). It draws the
  images of a client's class more often if the client has more samples of it (``server_weighting``).
"""

from fedaf.common.options import with_defaults
from fedaf.methods.fedaf import FedAF, FedAFOptions


@with_defaults(
    resampling="distance",
    lambda_loc=1.0,
    match_spread=1.0,
    match_distribution=1.0,
    image_lr_decay=True,
    continue_images=False,
    init="clusters",
    match_clusters=True,
    replay=20,
    server_steps=3000,
    server_average=0.17,
    server_cutmix=0.5,
    server_weighting=0.5,
)
class FedAFPlusOptions(FedAFOptions):
    """Options of FedAF+: those of FedAF, with other defaults."""


class FedAFPlus(FedAF):
    """FedAF with other values of its options."""

    Options = FedAFPlusOptions
    title = "FedAF+"
    family = "fedaf-plus"
    version = 3
    keeps_privacy = True
