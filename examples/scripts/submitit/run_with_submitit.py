"""Submit a training by submitit: `--cluster slurm` on a Slurm cluster, `--cluster runner` here."""

import argparse
import json
import uuid
from pathlib import Path

import submitit


def get_args_parser():
    parser = argparse.ArgumentParser("training with submitit")
    parser.add_argument("--epochs", default=6, type=int)
    parser.add_argument("--output_dir", default="", type=str)
    parser.add_argument("--resume", default="", type=str)
    parser.add_argument("--ngpus", default=0, type=int)
    parser.add_argument("--ntasks", default=1, type=int)
    parser.add_argument("--timeout", default=60, type=int, help="minutes")
    parser.add_argument("--job_dir", default="experiments", type=str)
    parser.add_argument("--cluster", default=None, type=str)
    return parser


class Trainer:
    def __init__(self, args):
        self.args = args

    def __call__(self):
        import training  # beside this script, as the code of the job

        self._setup_gpu_args()
        return training.main(self.args)

    def checkpoint(self):
        self.args.resume = str(Path(self.args.output_dir) / "checkpoint.json")
        print("Requeuing", json.dumps(vars(self.args)))
        return submitit.helpers.DelayedSubmission(type(self)(self.args))

    def _setup_gpu_args(self):
        env = submitit.JobEnvironment()
        self.args.output_dir = str(env.paths.folder)
        self.args.rank = env.global_rank
        self.args.gpu = env.local_rank
        self.args.world_size = env.num_tasks
        print(f"Process group: {env.num_tasks} tasks, rank: {env.global_rank}")


def main():
    args = get_args_parser().parse_args()
    executor = submitit.AutoExecutor(folder=Path(args.job_dir) / "%j", cluster=args.cluster)
    executor.update_parameters(
        name="train",
        mem_gb=1,
        gpus_per_node=args.ngpus,
        tasks_per_node=args.ntasks,
        cpus_per_task=1,
        nodes=1,
        timeout_min=args.timeout,
        slurm_signal_delay_s=120,
    )
    args.dist_url = f"file://{Path(args.job_dir).absolute()}/{uuid.uuid4().hex}_init"
    job = executor.submit(Trainer(args))
    print("Submitted job_id:", job.job_id)
    print("Result:", job.results())


if __name__ == "__main__":
    main()
