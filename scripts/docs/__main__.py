"""Write every generated page anew: ``python -m scripts.docs``."""

from scripts.docs import cli, decisions, job_file, machines, policy, promises, sources
from scripts.docs.page import DOCS, regenerate

PAGES = {
    "explanation/changing-a-running-job.md": decisions.reference,
    "reference/cli.md": cli.reference,
    "reference/jobfile-fields.md": job_file.reference,
    "reference/policy-facts.md": policy.reference,
    "reference/profiles/promises.md": promises.reference,
    "sources.md": sources.reference,
    **machines.pages(),
}


def main() -> None:
    for name, reference in PAGES.items():
        path = DOCS / name
        path.write_text(regenerate(path.read_text(encoding="utf-8"), reference()), encoding="utf-8")


if __name__ == "__main__":
    main()
