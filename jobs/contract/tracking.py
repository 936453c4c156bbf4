"""Request of a job for experiment trackers: TensorBoard files, a run of MLflow."""

from typing import Final

from pydantic import Field

from jobs.contract.base import Spec

TRACKERS: Final = ("tensorboard", "mlflow")

TRACKER_PACKAGES: Final = {"tensorboard": "tensorboardX", "mlflow": "mlflow-skinny"}
"""The package that each tracker needs where the job runs."""

TRACKER_MODULES: Final = {"tensorboard": "tensorboardX", "mlflow": "mlflow"}
"""The module that each of these packages brings."""


class Tracking(Spec):
    """The trackers of an attempt, as ``spec.json`` and ``RUNNER_TRACK`` say them."""

    tensorboard: bool = False
    mlflow: str | None = Field(None, description="The address of a tracking server, or file:///DIRECTORY.")
    name: str = Field("", description="Of the job: the experiment and the run of MLflow are called so.")

    @property
    def trackers(self) -> tuple[str, ...]:
        """The names of the trackers."""
        asked = {"tensorboard": self.tensorboard, "mlflow": self.mlflow is not None}
        return tuple(name for name in TRACKERS if asked[name])
