"""Write every generated page anew: ``python -m scripts.docs``."""

from scripts.docs import api, cli, decisions, job_file, machines, policy, promises, sources
from scripts.docs.page import ROOT, regenerate

PAGES = {
    "docs/reference/api.md": api.reference,
    "provenance/decisions.md": decisions.reference,
    "docs/reference/cli.md": cli.reference,
    "docs/reference/jobfile-fields.md": job_file.reference,
    "docs/reference/policy-facts.md": policy.reference,
    "provenance/promises.md": promises.reference,
    "provenance/README.md": sources.reference,
    "provenance/machines.md": machines.reference,
}


def main() -> None:
    for name, reference in PAGES.items():
        path = ROOT / name
        path.write_text(regenerate(path.read_text(encoding="utf-8"), reference()), encoding="utf-8")


if __name__ == "__main__":
    main()
