"""The table, the picture and the files of a run."""

import dataclasses
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.measuring import LARGEST_SHARE_OF_OTHERS
from benchmarks.peers.running import Row

BEGIN, END = "<!-- begin: written by make bench -->", "<!-- end -->"
_CPU_FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8")


def machine() -> dict[str, Any]:
    """The processor, as far as Linux tells."""
    fields: dict[str, str] = {}
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", "").split())
    return {
        "cpu": fields.get("model name", platform.processor()),
        "cores": sum(line.startswith("processor") for line in lines),
        "features": [name for name in _CPU_FEATURES if name in flags],
        "system": platform.platform(),
    }


def table(rows: Sequence[Row]) -> str:
    """Markdown, a row a goal."""
    lines = ["| work | ours | beside | theirs | found | goal | reached |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        theirs = f"{number(row.peer_figure)} ({row.peer})" if row.peer else ""
        ours = f"{number(row.our_figure)} {row.unit} ({row.ours})" if row.ours else ""
        cells = [row.title, ours, row.against, theirs, number(row.found), row.goal, verdict(row)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def verdict(row: Row) -> str:
    if row.found is None:
        return f"not measured: {row.problem}"
    told = "yes" if row.is_reached else "no"
    if row.problem:
        told += f", {row.problem}"
    if row.has_moved:
        told += ", but the machine moved"
    return f"{told}, but others used {row.others:.0%} of the machine" if row.others > LARGEST_SHARE_OF_OTHERS else told


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def summary(rows: Sequence[Row], about: dict[str, Any]) -> str:
    """What stands above the table: where and how it was measured."""
    cpu, versions = about["machine"], about["versions"]
    seen = [gflops for row in rows for side in ("ours", "peer") for gflops in _references(row, side)]
    reference = f"{min(seen):.0f} to {max(seen):.0f} GFLOP/s" if seen else "nothing"
    libraries = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    of_text = ", ".join(about["stand_ins"])
    lines = [
        f"{about['date']}, {cpu['cores']} cores of {cpu['cpu']} ({', '.join(cpu['features'])}), all of them for both "
        f"sides but where one thread is said. The reference product of matrices was seen at {reference}. {libraries}.",
        *([f"Stand-ins instead of real text: {of_text}."] if of_text else []),
        *(["A quick run, of small models and few turns: not to be quoted."] if about["quick"] else []),
    ]
    return "\n".join(lines) + "\n"


def _references(row: Row, side: str) -> list[float]:
    return row.details.get(side, {}).get("reference", [])


def write(rows: Sequence[Row], about: dict[str, Any], results: Path) -> str:
    """Writes `results` (JSON) and a page of the same name (.md); gives the page."""
    page = f"{summary(rows, about)}\n{table(rows)}"
    results.parent.mkdir(parents=True, exist_ok=True)
    content = about | {"rows": [dataclasses.asdict(row) for row in rows]}
    _write_aside(results, json.dumps(content, indent=1) + "\n")
    _write_aside(results.with_suffix(".md"), page)
    return page


def write_into(document: Path, page: str) -> None:
    """Replaces what stands between the two marks of a document."""
    text = document.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(
            f"{document} should have one line {BEGIN} and after it one line {END}: the table goes between."
        )
    before, rest = text.split(BEGIN)
    _write_aside(document, f"{before}{BEGIN}\n{page}{END}{rest.split(END)[1]}")


def _write_aside(path: Path, text: str) -> None:
    aside = path.with_name(path.name + ".part")
    aside.write_text(text, encoding="utf-8")
    aside.rename(path)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Bars of how many times better than each peer we are, and a mark at what was aimed at."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullLocator, ScalarFormatter

    drawn = [row for row in rows if row.found and row.peer][::-1]  # from the top down
    if not drawn:
        return
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.34 * len(drawn)), layout="constrained")
    colors = [
        "tab:gray"
        if row.has_moved or row.others > LARGEST_SHARE_OF_OTHERS
        else "tab:blue"
        if row.is_reached
        else "tab:orange"
        for row in drawn
    ]
    bars = axes.barh(range(len(drawn)), [row.advantage - 1 for row in drawn], 0.62, left=1, color=colors)
    axes.bar_label(bars, [f"{row.advantage:.2f}" for row in drawn], fontsize=7, padding=3)
    axes.plot([row.wanted_advantage for row in drawn], range(len(drawn)), "k|", markersize=13, label="goal")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    ticks = [0.25, 0.5, 1, 2, 5, 10, 20]
    largest = max(max(row.advantage, row.wanted_advantage) for row in drawn)
    smallest = min(min(row.advantage, row.wanted_advantage) for row in drawn)
    axes.set_xlim(min(0.5, smallest) * 0.85, max(2, largest) * 1.3)
    axes.set_xticks([tick for tick in ticks if axes.get_xlim()[0] <= tick <= axes.get_xlim()[1]])
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_yticks(range(len(drawn)), [f"{row.title}: {row.against}" for row in drawn], fontsize=7)
    axes.set_xlabel("times better than the peer")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
