"""Write every generated page anew: ``python -m scripts.docs``."""

from collections.abc import Callable, Mapping
from typing import Final

from scripts.docs import api, cli, decisions, job_file, machines, policy, promises, sources
from scripts.docs.page import ROOT, fill, regenerate

REFERENCES: Final[Mapping[str, Callable[[], str]]] = {
    "docs/reference/api.md": api.reference,
    "docs/reference/cli.md": cli.reference,
    "docs/reference/jobfile-fields.md": job_file.reference,
    "docs/reference/policy-facts.md": policy.reference,
    "provenance/decisions.md": decisions.reference,
    "provenance/promises.md": promises.reference,
    "provenance/README.md": sources.reference,
}
MACHINES: Final = "provenance/machines.md"
PAGES: Final = (*REFERENCES, MACHINES)


def remade(name: str) -> str:
    """Return a page with its generated parts as they have to be now."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return fill(text, machines.transcript) if name == MACHINES else regenerate(text, REFERENCES[name]())


def main() -> None:
    for name in PAGES:
        (ROOT / name).write_text(remade(name), encoding="utf-8")


if __name__ == "__main__":
    main()
