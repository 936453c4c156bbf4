"""Reads both texts of a pair in one sequence and answers first, second or similar, as LMOL does.

The model sees the order: what it says of a pair and of the swapped pair may contradict each other, and the
disagreement between them is a part of the loss.  The answer is a token at the last position of the sequence;
computing the vocabulary at all positions is LMOL's waste, and a switch.

Shape legend: R rows (pairs), O orders, T tokens, K answers, M texts.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

import csv
import io
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from jobs.checkpoint import durable as files
from jobs.checkpoint.signatures import CORPUS, MODEL, SCHEDULE, model_signature, schedule_signature, signature
from jobs.contract.plans.pair_classifier import PROMPT, WORDS, PairClassifier
from jobs.data.pairs import FIRST, SECOND, SIMILAR, Part, Reading, read_pairs
from jobs.training.failures import InvalidSpec
from jobs.training.randomness import seed_all
from jobs.training.report import say, warn
from jobs.training.switches import Switches
from jobs.workloads.common.encoder import tell_recomputing
from jobs.workloads.pair_classifier import PairComparator, PairTask
from jobs.workloads.pair_sequence.network import Characters, SequenceNetwork
from jobs.workloads.pair_sequence.ranking import bradley_terry, rank_correlation
from jobs.workloads.pair_sequence.sequences import Codec, Pool, Sequences, Shown, pool, shares
from jobs.workloads.protocol import BuildContext, Evaluation

RANKING: Final = "ranking.csv"
"""The newest ranking, in the cache of the job."""

LORA: Final = ".lora_"
"""Stands in the names of the changes of lora."""

_AT_ONCE: Final = 16
"""Pairs in one pass of a ranking."""

_NAMED: Final = 3
"""Texts at either end of a ranking that the log names."""


class PairReader(PairTask):
    """The workload: pairs, model and loss of one spec."""

    def __init__(self, plan: PairClassifier, setting: BuildContext) -> None:
        self.plan = plan
        self._cache = setting.cache_dir
        reading = Reading(
            value_column=plan.value_column,
            longest=plan.length - 1,
            any_text=plan.pretrained is not None,
            threshold=plan.threshold,
            folds=plan.folds,
            fold=plan.fold,
        )
        found = read_pairs(Path(plan.data), reading)
        for note in found.notes:
            say(note)
        self._corpus = found.sha256
        pools = {part.split: _pool(part, plan.threshold) for part in (found.train, found.test)}
        self._items = pools["train"].count
        self._shares = shares(pools["train"])
        plan = plan.with_steps(self.steps_per_epoch)  # a ramp of the loss needs the number of steps
        seed_all(setting.seed, "weights")
        codec = self._begin(plan, [*found.train.texts, *found.test.texts], setting.switches)
        once = setting.switches.profile.conversion == "once"
        train, test = (_shown(part, codec, once=once) for part in (found.train, found.test))
        self.source = Sequences(train, test, pools["train"], pools["test"], plan, setting.seed)
        setting.switches.applied("conversion", verified=True, note="texts to tokens")
        _tell_positions(setting.switches, self.model, self.source)

    def _begin(self, plan: PairClassifier, texts: list[str], switches: Switches) -> Codec:
        """Make or load the model, and return how it is shown pairs."""
        self.model: nn.Module
        if plan.pretrained is None:
            self._model_is: tuple[object, ...] = (plan.kind, plan.form, plan.heads)
            self.model = SequenceNetwork(plan, switches.profile)
            tell_recomputing(switches, plan.layers)
            return Characters(plan.length - 1)
        from jobs.workloads.pair_sequence.pretrained import load_pretrained

        found = load_pretrained(plan, texts, switches)
        self.model = found.model
        prompt, answers = plan.prompt or PROMPT, list(plan.answers or WORDS)
        lora = None if plan.lora is None else plan.lora.model_dump(exclude={"dropout"})
        self._model_is = (plan.kind, plan.form, found.digest, prompt, answers, lora, plan.quantize)
        trained = sum(one.numel() for one in found.model.parameters() if one.requires_grad)
        whole = sum(one.numel() for one in found.model.parameters())
        say(
            f"{plan.pretrained}: {trained:,} of {whole:,} parameters are trained;"
            f" pairs of {found.codec.length} tokens"
        )
        return found.codec

    @property
    def items_per_step(self) -> int:
        return self.plan.batch_size

    @cached_property
    def signatures(self) -> Mapping[str, str]:
        plan = self.plan
        weights = (plan.threshold, plan.similar_weight, plan.swap_weight_start, plan.swap_weight_end)
        dropout = plan.lora.dropout if plan.lora else None
        return {
            MODEL: model_signature(self.model, *self._model_is),
            CORPUS: signature([self._corpus, plan.folds, plan.fold]),
            SCHEDULE: schedule_signature(
                plan,
                plan.form,
                plan.balance,
                plan.masked,
                dropout,
                *weights,
                *_given(plan.trained_learning_rate),
            ),
        }

    def judge(self, sums: Mapping[str, float]) -> Evaluation:
        found = super().judge(sums)
        part = self.source.test.part
        if not self.plan.ranked or len(part.texts) < 2:
            return found
        strength_M = self._strengths(min(self.plan.ranked, len(part.texts)))
        lines = (*found.lines, _ranking_line(part, strength_M))
        self._write_ranking(part, strength_M)
        if part.value_M is None:
            return replace(found, lines=lines)
        correlation = rank_correlation(strength_M, part.value_M[: len(strength_M)].cpu())
        metrics = {**found.metrics, "ranking_correlation": correlation}
        baseline = {**found.baseline, "ranking_correlation": 0.0}
        return replace(found, metrics=metrics, baseline=baseline, lines=lines)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the groups, those of ``trained`` with their share of the learning rate."""
        groups, rate = super().parameter_groups(), self.plan.trained_learning_rate
        if rate is None:
            return groups
        parted = []
        for group in groups:
            for share in (1.0, rate / self.plan.learning_rate):
                own = [one for one in group["params"] if (LORA in one[0]) == (share == 1.0)]
                parted += [{**group, "params": own, "share": share}] if own else []
        return parted

    def save_pretrained(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Write the adapter of a pretrained model, or the whole model, in the layout of Hugging Face."""
        model: Any = self.model  # of a plan that has such a layout
        model.save_pretrained(directory, weights)

    @torch.inference_mode()
    def _strengths(self, count: int) -> Tensor:
        """Return the Bradley-Terry strengths of the first test texts, by all pairs of them, both orders."""
        device = next(self.model.parameters()).device
        pairs_P2 = torch.tensor(list(combinations(range(count), 2)))
        wins_MM = torch.zeros(count, count, dtype=torch.float64)
        self.model.eval()
        try:
            for pairs_R2 in pairs_P2.split(_AT_ONCE):
                tokens_ROT = self.source.test.of(pairs_R2).to(device)
                share_ROK = self.model(tokens_ROT)[:, 0].double().softmax(dim=2).cpu()
                first_R, second_R = pairs_R2.unbind(1)
                ahead_R = share_ROK[:, 0, FIRST] + share_ROK[:, 1, SECOND]
                behind_R = share_ROK[:, 0, SECOND] + share_ROK[:, 1, FIRST]
                even_R = share_ROK[:, :, SIMILAR].sum(dim=1) / 2
                wins_MM[first_R, second_R] = (ahead_R + even_R) / 2
                wins_MM[second_R, first_R] = (behind_R + even_R) / 2
        finally:
            self.model.train()
        return bradley_terry(wins_MM)

    def _write_ranking(self, part: Part, strength_M: Tensor) -> None:
        if self._cache is None:
            return
        rows = [["rank", "text", "strength", *([] if part.value_M is None else ["measured"])]]
        for rank, number in enumerate(strength_M.argsort(descending=True, stable=True).tolist(), start=1):
            measured = [] if part.value_M is None else [repr(float(part.value_M[number]))]
            rows.append([str(rank), part.texts[number], f"{float(strength_M[number]):.6f}", *measured])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            files.replace(self._cache / RANKING, text.getvalue().encode())
        except OSError as error:  # a report that cannot be written does not end the training
            warn(f"{RANKING} was not written: {error.strerror}")


def choose_form(plan: PairClassifier, setting: BuildContext) -> PairTask:
    """Return the workload of a plan: summaries that are compared, or both texts in one sequence."""
    form = PairReader if plan.form == "sequence" else PairComparator
    return form(plan, setting)


def _given(value: float | None) -> tuple[float, ...]:
    return () if value is None else (value,)


def _pool(part: Part, threshold: float) -> Pool:
    made = pool(part, threshold)
    if made.count == 0:
        what = f"{len(part.texts)} text(s)" if part.listed is None else "no pair"
        fact = f"{what} with split {part.split}: there is nothing to compare"
        raise InvalidSpec(f"data: {fact}; give more of them")
    return made


def _shown(part: Part, codec: Codec, *, once: bool) -> Shown:
    tokens = tuple(tuple(codec.encode(text)) for text in part.texts) if once else None
    return Shown(part, codec, tokens)


@torch.inference_mode()
def _tell_positions(switches: Switches, model: nn.Module, source: Sequences) -> None:
    """Record at how many positions the vocabulary is computed, from one pair that the model is shown."""
    if switches.profile.last_position_only != model.last_only:
        return  # it fell back, and said so
    tokens_ST = source.train.of(torch.tensor([[0, 1]]))[0].to(next(model.parameters()).device)
    positions = model.words(tokens_ST).shape[1]
    asked = 1 if model.last_only else source.train.codec.length
    note = f"the vocabulary is computed at {positions} of {source.train.codec.length} positions"
    switches.applied("last_position_only", verified=positions == asked, note=note)


def _ranking_line(part: Part, strength_M: Tensor) -> str:
    order = strength_M.argsort(descending=True, stable=True).tolist()
    named = [f"{part.texts[number]} ({float(strength_M[number]):+.2f})" for number in order]
    if len(named) > 2 * _NAMED:
        named = [*named[:_NAMED], "...", *named[-_NAMED:]]
    return f"Bradley-Terry ranking of {len(order)}: {'  '.join(named)}"
