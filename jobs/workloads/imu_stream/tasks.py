"""Chooses between the two tasks of ``imu_stream``: the motion of one sensor, or the pose of a body."""

from jobs.contract.plans.imu_stream import ImuStream
from jobs.workloads.protocol import BuildContext, Workload


def choose_task(plan: ImuStream, setting: BuildContext) -> Workload:
    """Return the workload that a plan asks for.

    Raises:
        InvalidSpec: the training data is missing, unreadable, invalid or too small.
    """
    if plan.module is None:
        from jobs.workloads.imu_stream.workload import StreamedPoses  # noqa: PLC0415 - only what is used

        return StreamedPoses(plan, setting)
    from jobs.workloads.imu_stream.body.workload import BodyPoses  # noqa: PLC0415 - only what is used

    return BodyPoses(plan, plan.module, setting)
