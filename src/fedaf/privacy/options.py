"""Options of differential privacy: the ``[privacy]`` table of a configuration. This module does not import PyTorch."""

from typing import Annotated

from pydantic import Field, model_validator

from fedaf.common.options import Flag, Options


class PrivacyOptions(Options):
    """What differential privacy promises, and how its budget is divided. Without ``epsilon`` it is off."""

    epsilon: Annotated[float | None, Flag("Method", default="off")] = Field(
        None,
        gt=0,
        le=1e6,
        description="differential privacy: epsilon of all releases of a client in this run together; unset: off",
    )
    delta: float = Field(1e-5, gt=0, lt=0.1, description="delta of the guarantee")
    networks: int = Field(50, ge=1, le=10_000, description="random networks whose features a release describes")
    width: int = Field(
        32, ge=1, le=8192, description="filters per block of these networks, which are ConvNets for any trained model"
    )
    releases: int = Field(
        1,
        ge=1,
        description="releases that share the budget, one in each of the first rounds; later rounds use the last one",
    )
    count_share: float = Field(
        0.05, gt=0, lt=1, description="share of a release's budget that goes to the number of samples of each class"
    )
    knowledge_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of a release's budget that goes to the mean logits of CDC and LGKM; 0: both are off",
    )
    simulate_seed: int | None = Field(
        None,
        ge=0,
        lt=2**62,
        description="draw repeatable noise from this seed, for experiments: such a run is NOT PRIVATE; unset: noise "
        "from the operating system",
    )
    ledger: str | None = Field(
        None,
        description="in one process: folder with the clients' ledgers, kept over runs; unset: in the run directory",
    )

    @model_validator(mode="after")
    def _shares_leave_a_rest(self) -> "PrivacyOptions":
        if self.count_share + self.knowledge_share >= 1:
            raise ValueError("count_share and knowledge_share must be below 1 together; the rest is for the features")
        return self

    @property
    def feature_share(self) -> float:
        """The share of a release's budget that goes to the sums of features."""
        return 1 - self.count_share - self.knowledge_share
