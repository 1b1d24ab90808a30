"""The ledger: where the mass of an explanation went, entry by entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .tables import render_html, render_table

NAMES = ("entry", "layer", "op", "rule")
MASSES = ("mass_in_positive", "mass_in_negative", "mass_out_positive", "mass_out_negative")
# The columns for mass that does not reach the inputs, and their signs in the closing sum.
BOOKED = {
    "absorbed_bias": -1,
    "absorbed_constant": -1,
    "absorbed_epsilon": -1,
    "softmax": -1,
    "created": 1,
    "dropped": -1,
    "withheld": -1,
}
PRUNED = (
    *("neurons_before", "neurons_after", "theta_positive", "theta_negative", "p_positive", "p_negative"),
    *("lambda_positive", "lambda_negative", "orphaned", "flipped", "flipped_mass", "tied"),
)

Mass = tuple[Tensor, Tensor]  # positive and negative part per sample, both ≥ 0


def signed_mass(rows: Tensor) -> Mass:
    """The mass of the positive and of the negative part of each row (batch, n)."""
    return rows.clamp(min=0).sum(1), rows.clamp(max=0).sum(1).neg()


def rows_of(relevance: Tensor) -> Tensor:
    """The relevance of an input, one row per sample, (batch, n)."""
    return relevance.flatten(1) if relevance.dim() > 1 else relevance[:, None]


def growth(before: Tensor, after: Tensor) -> Tensor:
    """The factor by which pruning multiplied ‖R‖₁, at least 1."""
    return torch.where(before > 0, after / before, 1.0).clamp(min=1)


class Booking:
    """Where the mass of one operation went, per sample: tensors (batch,). Inactive where nobody reads the ledger."""

    def __init__(self, active: bool = True) -> None:
        self.active = active
        self.bias: Any = 0.0
        self.constant: Any = 0.0  # class tokens, position embeddings, padding, φ(0) of activations
        self.epsilon: Any = 0.0
        self.softmax: Any = 0.0  # taken by the softmax rule, or given where it is negative
        self.created: Any = 0.0
        self.dropped: Any = 0.0
        self.withheld: Any = 0.0  # withheld by a condition
        self.cancellation: Any = None  # at a sum a + b: Σ(|a| + |b|) / Σ|a + b|
        self.amplification: Any = None  # and Σ(|R_a| + |R_b|) / Σ|R|
        self.grown: Any = None  # the factor by which PLRP-M multiplied a tensor's ‖R‖₁; known without the ledger too

    @property
    def booked(self) -> tuple[Any, ...]:
        """The columns of `BOOKED`."""
        return self.bias, self.constant, self.epsilon, self.softmax, self.created, self.dropped, self.withheld

    @property
    def touched(self) -> bool:
        """Whether anything was booked."""
        return any(not isinstance(v, float) for v in self.booked)


def conservation(score: Tensor, inputs: Sequence[Tensor], ledger: Ledger) -> Tensor:
    """How far mass is from being conserved, per sample, relative to the largest ‖R‖₁ on the way.

    |score − Σ R_input − Σ absorbed − Σ softmax − Σ dropped − Σ withheld + Σ created|, summed in float64.
    """
    missing = score.double().cpu()
    largest = torch.maximum(ledger.largest_mass().cpu(), missing.abs())
    for relevance in inputs:
        missing = missing - rows_of(relevance).sum(1, dtype=torch.float64).cpu()
    for name, sign in BOOKED.items():
        for column in ledger.column(name):
            missing = missing + sign * column.cpu()
    return missing.abs() / largest.clamp(min=torch.finfo(torch.float64).tiny)


class Ledger(Sequence[dict[str, Any]]):
    """One record per entry of the tape that moves mass and per sample, made when it is read.

    In every record: mass in = mass out + absorbed_bias + absorbed_constant + absorbed_epsilon + softmax + dropped +
    withheld − created, where mass is positive minus negative part. Over all records of a sample: score = Σ input
    relevance + Σ absorbed + Σ softmax + Σ dropped + Σ withheld − Σ created. `cancellation` and `amplification` are
    those of sums.
    """

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self._rows: list[dict[str, Any]] = []

    def add(
        self, *, layer: str, op: str, rule: str, mass_in: Mass, mass_out: Mass, book: Booking, **pruned: Any
    ) -> None:
        """Write one entry; every number is a tensor (batch,) or a float."""
        values = (len(self._rows), layer, op, rule, *mass_in, *mass_out, *book.booked)
        row = dict(zip((*NAMES, *MASSES, *BOOKED), values, strict=True))
        row |= {"cancellation": book.cancellation, "amplification": book.amplification}
        self._rows.append(row | {name: pruned.get(name) for name in PRUNED})

    @classmethod
    def joined(cls, parts: Sequence[Ledger]) -> Ledger:
        """The ledgers of a batch's pieces as that of the batch; the model must have done the same in each."""
        whole = cls(sum(part.batch for part in parts))
        if len({tuple(tuple(row[n] for n in NAMES) for row in part._rows) for part in parts}) > 1:
            raise ValueError(
                "The model ran different operations for different pieces of the batch, so their ledgers cannot be "
                "joined: take the batch as one piece (micro_batch=len(inputs)), or explain piece by piece."
            )
        for rows in zip(*(part._rows for part in parts), strict=True):
            whole._rows.append({name: _joined([row[name] for row in rows], parts) for name in rows[0]})
        return whole

    def records(self) -> list[dict[str, Any]]:
        """All records as plain data: a list of dicts that pandas and polars take as it is."""
        records = []
        for row in self._rows:
            columns = {k: v.tolist() if isinstance(v, Tensor) else [v] * self.batch for k, v in row.items()}
            records += [{"sample": n, **{k: v[n] for k, v in columns.items()}} for n in range(self.batch)]
        return records

    def column(self, name: str) -> list[Tensor]:
        """One booked column of all entries, each (batch,)."""
        return [torch.as_tensor(row.get(name, 0.0), dtype=torch.float64).expand(self.batch) for row in self._rows]

    def total(self, name: str) -> Tensor:
        """One booked column summed over all entries, (batch,)."""
        return sum((column.cpu() for column in self.column(name)), torch.zeros(self.batch, dtype=torch.float64))

    def largest_mass(self) -> Tensor:
        """The largest ‖R‖₁ on the way, per sample: the scale of closing."""
        sizes = [torch.as_tensor(mass, dtype=torch.float64) for _, mass in self._steps()]
        return torch.stack(sizes).amax(0) if sizes else torch.zeros(self.batch, dtype=torch.float64)

    def _steps(self) -> Iterator[tuple[str, Any]]:
        """‖R‖₁ before and after each entry, with the entry in words."""
        for row in self._rows:
            where = f"'{row['layer']}'" if row["layer"] else row["op"]
            where = f"the pruned input of '{row['layer']}'" if row["op"] == "prune" else where
            for side in ("in", "out"):
                yield where, row[f"mass_{side}_positive"] + row[f"mass_{side}_negative"]

    def largest_growth(self, start: Tensor, end: Tensor) -> tuple[Tensor, list[str]]:
        """The largest ‖R‖₁ on the way from the output to the input, whose own are `start` and `end` (batch,), and the
        entry at which the largest so far grew by the largest factor. NaN counts as ∞.
        """
        largest, most = start.double(), torch.ones_like(start, dtype=torch.float64)
        names = ["the output"] * self.batch
        for name, mass in [*self._steps(), ("the input", end)]:
            size = torch.as_tensor(mass, dtype=torch.float64).cpu().expand(self.batch).nan_to_num(nan=torch.inf)
            factor = torch.where(size > largest, size / largest, 0.0)
            for sample in (factor > most).nonzero()[:, 0].tolist():
                names[sample] = name
            most, largest = torch.maximum(most, factor), torch.maximum(largest, size)
        return largest, names

    def pruned(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of the pruned tensors, (batch,) each: the share in which anything was cut, the largest tie at the cut, the
        largest share of a tensor's ‖R‖₁ that has flipped its sign; NaN where there are none.
        """
        rows = [row for row in self._rows if row["op"] == "prune"]
        nothing = torch.full((self.batch,), torch.nan, dtype=torch.float64)
        if not rows:
            return nothing, nothing, nothing

        def column(name: str) -> Tensor:  # (entries, batch); older ledgers have no ties
            values = [nothing if row.get(name) is None else torch.as_tensor(row[name]).double().cpu() for row in rows]
            return torch.stack([one.expand(self.batch) for one in values])

        cut = (column("p_positive") > 0) | (column("p_negative") > 0)
        flipped, mass = column("flipped_mass"), column("mass_out_positive") + column("mass_out_negative")
        share = torch.where(flipped > 0, flipped / mass, 0.0)
        return cut.double().mean(0), column("tied").amax(0), share.amax(0)

    def __getitem__(self, index: Any) -> Any:
        return self.records()[index]

    def __len__(self) -> int:
        return len(self._rows) * self.batch

    def table(self) -> list[tuple[str, ...]]:
        """Means over the samples, as text, for `print(explanation.booked)`."""
        rows = []
        for row in self._rows:
            mean = {k: _mean(v) for k, v in row.items() if k not in NAMES}
            lost = mean["absorbed_epsilon"] + mean["softmax"] + mean["dropped"] - mean["created"]
            numbers = (
                mean["mass_in_positive"] - mean["mass_in_negative"],
                mean["mass_out_positive"] - mean["mass_out_negative"],
                mean["absorbed_bias"] + mean["absorbed_constant"],
                lost + mean.get("withheld", 0.0),
            )
            cut = ("", "")
            if row["neurons_before"] is not None:
                neurons = f"{mean['neurons_before']:.0f} → {mean['neurons_after']:.0f}"
                cut = (neurons, f"{mean['p_positive']:.3f} / {mean['p_negative']:.3f}")
            rows.append((row["layer"], row["op"], row["rule"], *(f"{v:.4g}" for v in numbers), *cut))
        return rows

    HEADER = (
        *("layer", "op", "rule", "in", "out", "to bias, constants", "to ε, softmax, dropped, withheld"),
        *("neurons", "pruned + / −"),
    )

    def __repr__(self) -> str:
        return render_table(self.HEADER, self.table())

    def _repr_html_(self) -> str:
        return render_html(self.HEADER, self.table())


def growth_by_pruning(ledger: Ledger) -> tuple[Tensor, list[str]]:
    """The largest factor by which pruning multiplied the ‖R‖₁ of a tensor, (batch,), and that tensor."""
    steps = list(ledger._steps())
    pairs = zip(ledger._rows, steps[::2], steps[1::2], strict=True)
    pruned = [(name, growth(before, after)) for row, (name, before), (_, after) in pairs if row["op"] == "prune"]
    if not pruned:
        return torch.ones(ledger.batch, dtype=torch.float64), [""] * ledger.batch
    largest, which = torch.stack([factor.double().cpu() for _, factor in pruned]).max(0)
    return largest, [pruned[number][0] for number in which.tolist()]


def _joined(values: Sequence[Any], parts: Sequence[Ledger]) -> Any:
    """One column's values of all pieces: tensors (batch,) where any of them has one, else the value that all share."""
    if not any(isinstance(value, Tensor) for value in values):
        return values[0]
    return torch.cat([torch.as_tensor(v).expand(part.batch) for v, part in zip(values, parts, strict=True)])


def averaged_ledgers(parts: Sequence[Ledger]) -> tuple[Ledger, Ledger]:
    """The mean of the ledgers against several references, and their standard deviation."""
    both = Ledger(parts[0].batch), Ledger(parts[0].batch)
    for rows in zip(*(part._rows for part in parts), strict=True):
        for ledger, statistic in zip(both, (torch.mean, _deviation), strict=True):
            ledger._rows.append({k: _over([row[k] for row in rows], statistic, k in NAMES) for k in rows[0]})
    return both


def _over(values: Sequence[Any], statistic: Any, name: bool) -> Any:
    """One column's value over several ledgers; a name, and a column that an entry does not have, stay."""
    if name or values[0] is None:
        return values[0]
    each = torch.stack(torch.broadcast_tensors(*(torch.as_tensor(value).double() for value in values)))
    over = statistic(each, 0)
    return over if over.dim() else float(over)


def _deviation(values: Tensor, dim: int) -> Tensor:
    return values.std(dim, correction=0)


def _mean(value: Any) -> float:
    numbers = torch.as_tensor(0.0 if value is None else value).double()
    return float(numbers.mean()) if numbers.numel() else 0.0
