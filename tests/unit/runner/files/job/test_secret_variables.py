"""Secrets are known by value and purpose, and the message names the way that works."""

import re
from pathlib import Path

import pytest

from runner.base.textfile import FileError
from runner.files.field_checks import is_secret
from runner.files.job.load import parse_job
from runner.files.job.model import JobFile

ISSUED = "hf_" + "aB3" * 12
"""As a service issues them."""


def job(text: str) -> JobFile:
    return parse_job(f"workload: {{kind: causal_lm, data: stdlib}}\n{text}".encode(), Path("job.yaml"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EOS_TOKEN", "</s>"),
        ("NUM_TOKEN", "512"),
        ("PAD_TOKEN", "PAD"),
        ("IMAGE_TOKEN", "<image>"),
        ("CONTEXT_TOKEN", "[CTX]"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("PASSWORD_LENGTH", "12"),
        ("SECRET_SHARING_ROUNDS", "3"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/run/secrets/gcp"),
        ("DB_PASSWORD", ""),
        ("MONKEY", "banana"),
        ("WANDB_BASE_URL", "https://wandb.example.org:8080"),
        ("NVIDIA_TF32_OVERRIDE", "0"),
        ("TASK", "token classification"),
        ("COUNT_TOKEN", "123456789012"),
        ("TRIGGER_TOKEN", "sks"),
        ("OPENAI_API_KEY", "EMPTY"),
        ("RUN_NAME", "sk-learn-experiment-2024-baseline"),
        ("FIRST_PASS", "warmup"),
        ("MAX_TOKENS", "128"),
        ("HF_TOKEN_PATH", "/data/token"),
        ("REFRESH_TOKEN_EVERY", "10"),
        ("TOKEN_TYPE", "bearer"),
        ("SORT_KEY", "date"),
        ("REPOSITORY", "https://oauth2:${GL_TOKEN}@git.example.org/x"),
    ],
)
def test_a_variable_of_another_purpose_is_no_secret(name: str, value: str) -> None:
    assert not is_secret(name, value)
    assert job(f'environment: {{{name}: "{value}"}}\n').environment == {name: value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "abc"),
        ("NUM_TOKEN", ISSUED),
        ("ANYTHING", ISSUED),
        ("WANDB_API_KEY", "abc"),
        ("AWS_SECRET_ACCESS_KEY", "abc"),
        ("client_secret", "abc"),
        ("DB_PASSWORD", "123456"),
        ("MYSQL_PWD", "abc"),
        ("KAGGLE_KEY", "0123456789abcdef"),
        ("AZURE_STORAGE", "DefaultEndpointsProtocol=https;AccountName=ada;AccountKey=a+b=="),
        ("SENTRY_DSN", f"https://{'0a' * 16}@sentry.example.org/1"),
        ("REGISTRY_LOGIN", r"\"auth\": \"YTpi\""),
        ("AUTHORIZATION", "Bearer abcdefgh0123456789"),
        ("HOOK", "https://hooks.slack.com/services/T0/B0/abc"),
        ("SERVICE_API_KEY", "0123456789" * 4),
        ("DATABASE_URL", "postgres://ada:pass@host/db"),
        ("KEY", "-----BEGIN PRIVATE KEY-----abc"),
        ("SMTP_PASS", "hunter2"),
        ("OPENAI", "sk-proj-" + "aB3_" * 10),
        ("NOTIFY", "https://discord.com/api/webhooks/1/abc"),
    ],
)
def test_a_secret_is_refused_with_the_way_that_works(name: str, value: str) -> None:
    with pytest.raises(FileError) as raised:
        job(f'environment: {{{name}: "{value}"}}\n')
    (line,) = raised.value.lines
    assert line.startswith(f"job.yaml:2:15: environment.{name}: is a secret")
    assert f"--secret-env {name}=FILE" in line
    assert value not in line


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("workload.command[2]", "workload: {kind: program, code: ., command: [python, x.py, @]}"),
        ("workload.command[1]", "workload: {kind: program, code: ., command: [python, --token=@]}"),
        ("workload.command[2]", "workload: {kind: program, code: ., command: [sh, -c, 'T=\"@\" python x']}"),
        ("labels.of", "workload: {kind: causal_lm, data: stdlib}\nlabels: {of: @}"),
        (
            "image.requirements[0]",
            "workload: {kind: causal_lm, data: stdlib}\nimage: {requirements: ['a @ https://ada:@@x/a.whl']}",
        ),
    ],
)
def test_what_a_service_has_issued_is_found_in_any_place(where: str, text: str) -> None:
    with pytest.raises(FileError) as raised:
        parse_job(text.replace("@", ISSUED, 1).encode(), Path("job.yaml"))
    assert any(f"{where}: has a secret in it" in line for line in raised.value.lines)
    assert ISSUED not in str(raised.value)


@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "ENV", "DOCKER_TAG", "OMP_NUM_THREADS"])
def test_a_variable_that_only_the_program_may_have_names_the_way(name: str) -> None:
    with pytest.raises(FileError, match=f"or write env {name}=VALUE before the command"):
        job(f'environment: {{{name}: "x"}}\n')


def test_a_variable_of_the_runtime_that_gives_devices_is_refused() -> None:
    for name in ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_REQUIRE_CUDA", "NVIDIA_MIG_CONFIG_DEVICES"):
        with pytest.raises(FileError, match=r"resources\.gpus"):
            job(f'environment: {{{name}: "x"}}\n')


def test_a_secret_may_be_a_variable_too() -> None:
    made = job("secrets: {HF_TOKEN: /home/ada/.hf}\nsecret_env: [HF_TOKEN]\n")
    assert made.secret_env == ("HF_TOKEN",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("secret_env: [HF_TOKEN]\n", "is not a secret of this job; add secrets.HF_TOKEN"),
        ("secrets: {a.b: /x}\nsecret_env: [a.b]\n", "not a valid variable name"),
        ("secrets: {LD_PRELOAD: /x}\nsecret_env: [LD_PRELOAD]\n", "which code programs load"),
        ("secrets: {A: /x}\nsecret_env: [A]\nenvironment: {A: b}\n", "is in environment, too"),
    ],
)
def test_a_variable_without_its_secret_is_told(text: str, told: str) -> None:
    with pytest.raises(FileError, match=re.escape(told)):
        job(text)


@pytest.mark.parametrize(("written", "kept"), [("022", "022"), ('"0027"', "0027"), ("002", "002")])
def test_a_umask_is_taken_as_it_is_written(written: str, kept: str) -> None:
    assert job(f"umask: {written}\n").umask == kept


@pytest.mark.parametrize("written", ["22", "0o22", "777", "u=rwx", "[]"])
def test_what_is_no_umask_is_refused(written: str) -> None:
    with pytest.raises(FileError, match="umask"):
        job(f"umask: {written}\n")
