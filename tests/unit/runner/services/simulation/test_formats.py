"""Published traces, in small made-up files of their formats."""

import json
from pathlib import Path

import pytest

from runner.base.textfile import FileError
from runner.services.simulation.formats import (
    DAY_S,
    FORMATS,
    holdable,
    last_days,
    read_published,
    scaled_to_load,
)

ALIBABA = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
late,12000,16384,8,1000,,LS,Running,864000,867600,864060
early,6000,12288,1,460,,LS,Running,0,600,0
waits,6000,12288,1,460,,BE,Pending,10,600,
no-gpu,6000,12288,0,0,,BE,Succeeded,10,600,20
"""

PHILLY = [
    {
        "status": "Pass",
        "vc": "v",
        "jobid": "application_1",
        "user": "ce2f4c",
        "submitted_time": "2017-10-07 01:11:39",
        "attempts": [
            {
                "start_time": f"2017-10-07 01:{begins}:00",
                "end_time": f"2017-10-07 01:{ends}:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
            }
            for begins, ends in ((12, 13), (14, 16))
        ]
        + [{"start_time": None, "end_time": None, "detail": []}],
    },
    {"jobid": "application_2", "user": "u", "submitted_time": "2017-10-07 01:00:00", "attempts": []},
]

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,0,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
"""


SIA = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,2,5902.0,6214e9
2017-10-09 06:13:04,0.0,2,0.0,6214e9
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text)
    return path


def test_alibabas_pods_are_jobs_of_one_owner(tmp_path: Path) -> None:
    found = read_published(written(tmp_path, ALIBABA), "alibaba-gpu-2023")
    assert [(job.job_id, job.submitted_s, job.duration_s, job.request.gpus) for job in found.jobs] == [
        ("early", 0.0, 600.0, 1),
        ("late", 864000.0, 3540.0, 8),
    ]
    assert found.left_out == 2
    assert {job.owner for job in found.jobs} == {"all"}
    assert [job.job_id for job in last_days(found.jobs, 1)] == ["late"]
    assert [job.job_id for job in holdable(found.jobs, 4)] == ["early"]


def test_the_attempts_of_a_philly_job_are_one_piece_of_work(tmp_path: Path) -> None:
    found = read_published(written(tmp_path, json.dumps(PHILLY)), "philly")
    [job] = found.jobs
    assert (job.job_id, job.owner, job.request.gpus, job.duration_s) == ("application_1", "ce2f4c", 2, 180.0)
    assert found.left_out == 1


def test_helios_jobs_have_their_duration_and_owner(tmp_path: Path) -> None:
    found = read_published(written(tmp_path, HELIOS), "helios")
    [job] = found.jobs
    assert (job.owner, job.duration_s, job.save_s, job.restart_s) == ("uXBbc", 36848.0, 10.0, 20.0)


def test_the_table_of_philly_has_virtual_clusters_as_owners(tmp_path: Path) -> None:
    found = read_published(written(tmp_path, SIA), "philly-sia")
    assert [(job.job_id, job.owner, job.request.gpus, job.duration_s) for job in found.jobs] == [
        ("line-3", "6214e9", 2, 2951.0),
        ("line-2", "11cb48", 1, 66.0),
    ]
    assert found.left_out == 1


def test_submissions_are_stretched_to_a_load(tmp_path: Path) -> None:
    jobs = read_published(written(tmp_path, ALIBABA), "alibaba-gpu-2023").jobs
    scaled = scaled_to_load(jobs, devices=8, load=0.5)
    work_device_s = 600 + 8 * 3540
    assert scaled[-1].submitted_s - scaled[0].submitted_s == pytest.approx(work_device_s / (8 * 0.5))
    assert [job.duration_s for job in scaled] == [job.duration_s for job in jobs]


@pytest.mark.parametrize(
    ("name", "text", "fact"),
    [
        ("alibaba-gpu-2023", "name,num_gpu\na,1\n", 'lacks "scheduled_time"'),
        ("alibaba-gpu-2023", ALIBABA.replace(",8,", ",many,"), "is not readable"),
        ("helios", "job_id\n" * 50, 'lacks "user"'),
        ("helios", HELIOS.splitlines()[0] + "\n", "holds no job with GPUs in the format helios"),
        ("philly", "{", "is not JSON"),
        ("philly", "{}", "is not a list of jobs"),
        ("philly", "[1]", "is not readable"),
    ],
)
def test_a_file_of_another_format_is_refused_at_its_line(
    tmp_path: Path, name: str, text: str, fact: str
) -> None:
    with pytest.raises(FileError, match=fact.replace("(", r"\(")) as refused:
        read_published(written(tmp_path, text), name)
    assert len(refused.value.problems) <= 20


def test_every_format_says_what_is_assumed() -> None:
    assert all("10s" in each.assumptions for each in FORMATS.values())
    assert DAY_S == 86400
