"""The tables of the documents: from benchmarks/figures/*.json, and these from what the programs measure.

    python benchmarks/figures.py record cpu-avx512 out/bench.json --command "aoext bench --m 1,16"
    python benchmarks/figures.py write

`record` keeps in the tree what a table shows of a program's JSON, under a name. `write` renews everything
between `<!-- figures: NAME -->` and `<!-- end -->` in the documents. tests/test_figures.py fails where a
document and the figures differ, and where a table stands outside of such a place.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

FOLDER = Path(__file__).parent
FIGURES = FOLDER / "figures"
DOCUMENTS = (
    *sorted(FOLDER.glob("*.md")),
    *(FOLDER.parent / "docs" / name for name in ("lora.md", "quality.md")),
)
SCHEMA = "aoext.figures/1"
PLACE = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Row = tuple[str, list[list[float] | None]]


def number(value: float) -> str:
    """Counts as they are, other numbers with three digits or whole."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def cell(values: list[float] | None, between: str = "") -> str:
    """The first number and the others in brackets; all of them with something between."""
    if not values:
        return "–"
    texts = [number(value) for value in values]
    if between:
        return between.join(texts)
    return f"{texts[0]} ({', '.join(texts[1:])})" if len(texts) > 1 else texts[0]


def table(figures: Mapping[str, Any]) -> str:
    """What was measured where, the numbers, and the commands that repeat them."""
    between = figures.get("between", "")
    lines = [["", *figures["columns"]]]
    lines += [[row["name"], *(cell(v, between) for v in row["values"])] for row in figures["rows"]]
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    rule = "|---" * len(lines[0]) + "|"
    return "\n\n".join(
        (
            textwrap.fill(f"{figures['what']} {figures['machine']}.", 118),
            "\n".join((head, rule, *body)),
            "\n".join(f"    {command}" for command in figures["commands"]),
        )
    )


def load(name: str) -> dict[str, Any]:
    return json.loads((FIGURES / f"{name}.json").read_text(encoding="utf-8"))


def written(document: str) -> str:
    """The document with its tables as the figures are."""
    return PLACE.sub(lambda found: f"{found[1]}\n{table(load(found[2]))}\n\n{found[3]}", document)


def of_bench(content: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """Geomeans over the shapes: time ÷ floor, times as fast as F.linear and as torch's own operator.

    On a CPU the floor is that of reading what no cache holds.
    """
    means = content["geomean"]
    on_cpu = content["environment"]["device"]["type"] == "cpu"
    columns = sorted({mean["M"] for mean in means})
    rows: dict[str, dict[int, list[float]]] = {}
    for mean in means:
        name = f"`{mean['operator']}`, {mean['format']}"
        name += f", groups of {mean['group_size']}" if mean["group_size"] else ""
        name += f", {mean['threads']} threads" if on_cpu else ""
        floor = mean["times_read_floor"] if on_cpu else mean["times_floor"]["aoext"]
        speedups = [mean["speedup"][other] for other in ("linear", "torch") if other in mean["speedup"]]
        rows.setdefault(name, {})[mean["M"]] = [floor, *speedups]
    return [f"M = {M}" for M in columns], [(n, [v.get(M) for M in columns]) for n, v in rows.items()]


def of_whole_model(content: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """Tokens a second, and how many times as fast as each base and peer."""
    rows: dict[str, dict[str, list[float]]] = {}
    for result in content["results"]:
        for measured in result["measured"]:
            what = f"{measured['kind']} of {measured['batch']}, {measured['mode']}"
            values = [measured["tokens_per_s"], *measured["speedup"].values()]
            rows.setdefault(result["name"], {})[what] = values
    columns = list(dict.fromkeys(what for row in rows.values() for what in row))
    return columns, [(name, [row.get(column) for column in columns]) for name, row in rows.items()]


def of_host_time(content: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """µs under no_grad, and times nn.Linear's in bfloat16."""
    own = [result for result in content["results"] if result["mode"] == "no_grad"]
    columns = list(dict.fromkeys(result["scheme"] for result in own))
    rows: dict[str, dict[str, list[float]]] = {}
    for result in own:
        rows.setdefault(result["way"], {})[result["scheme"]] = [result["seconds"] * 1e6, result["ratio"]]
    return columns, [(way, [row.get(column) for column in columns]) for way, row in rows.items()]


def of_demo(content: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """Bits per weight; bits per byte, and percent more than in bf16; speeds, and times the baseline's."""
    columns = ["bits per weight", "bits per byte", "prefill, tokens/s", "decode, tokens/s"]
    return columns, [
        (
            scheme["name"],
            [
                [scheme["speed_model"]["bits_per_weight"]],
                [scheme["bits_per_byte"], 100 * scheme["bits_per_byte_change"]],
                [scheme["prefill_tokens_per_s"], scheme["prefill_speedup"]],
                [scheme["decode_tokens_per_s"], scheme["decode_speedup"]],
            ],
        )
        for scheme in content["schemes"]
    ]


def of_merging(content: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """Bits per token in each state of a model, and the percentage of the adapter's change that survives."""
    columns = [*content["results"][0]["bits_per_token"], "survives, %"]
    return columns, [
        (result["scheme"], [[v] for v in (*result["bits_per_token"].values(), 100 * result["survives"])])
        for result in content["results"]
    ]


def of_quality(content: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """KL, and perplexity, by algorithm."""
    algorithms = list(dict.fromkeys(result["algorithm"] for result in content["results"]))
    rows: dict[str, dict[str, list[float]]] = {}
    for result in content["results"]:
        row = rows.setdefault(result["scheme"], {"bits a weight": [result["bits_per_weight"]]})
        row[result["algorithm"]] = [result["kl"], result["perplexity"]]
    columns = ["bits a weight", *algorithms]
    original = content["models"][0]["perplexity"]
    first: Row = ("bfloat16", [[16.0], [0.0, original], *(None for _ in algorithms[1:])])
    return columns, [first, *((name, [row.get(c) for c in columns]) for name, row in rows.items())]


READERS: dict[str, tuple[Callable[[Mapping[str, Any]], tuple[list[str], list[Row]]], str]] = {
    "aoext.bench/3": (
        of_bench,
        "Geomeans over the shapes: time ÷ floor, in brackets times as fast as `F.linear` and as torch's own.",
    ),
    "aoext.whole_model/1": (of_whole_model, "Tokens a second, in brackets times as fast as base and peer."),
    "aoext.host_time/1": (
        of_host_time,
        "µs of the host for a call, no_grad; in brackets times `nn.Linear`'s in bfloat16.",
    ),
    "aoext.merging/2": (
        of_merging,
        "Bits per byte of C++ that was held out: a small model of Python, and a LoRA trained on C++.",
    ),
    "aoext.quality/1": (
        of_quality,
        "Divergence (KL) from the model in bfloat16, nats a token of held-out text; in brackets perplexity.",
    ),
    "aoext.demo/3": (of_demo, "In brackets: percent more than in bf16; times as fast as unquantised."),
}


def recorded(content: Mapping[str, Any], commands: Iterable[str]) -> dict[str, Any]:
    """What a table shows of a program's JSON; ValueError where that holds no figures that are valid."""
    if content.get("schema") not in READERS:
        raise ValueError(f"the JSON must be one of {', '.join(READERS)}, got {content.get('schema')}")
    if content.get("busy"):
        raise ValueError(f"the machine was busy: {'; '.join(content['load']['reasons'])}")
    read, what = READERS[content["schema"]]
    columns, rows = read(content)
    where = content["environment"]
    device = where["device"]
    return {
        "schema": SCHEMA,
        "machine": ", ".join(
            (device["name"], device["instruction_set"], f"torch {where['torch']}", where["time"][:10])
        ),
        "what": what,
        "commands": list(commands),
        "columns": columns,
        "rows": [
            {"name": name, "values": [v and [float(f"{x:.4g}") for x in v] for v in values]}
            for name, values in rows
        ],
    }


def as_text(figures: Mapping[str, Any]) -> str:
    """JSON with a line for each list of numbers."""
    text = json.dumps(figures, indent=1, ensure_ascii=False, allow_nan=False)
    flat = re.sub(r"\[\s+([-\d.,\s]+?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
    return flat + "\n"


@click.group()
def main() -> None:
    """The tables of benchmarks/*.md, docs/lora.md and docs/quality.md."""


@main.command()
@click.argument("name")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--command", "commands", multiple=True, required=True, help="What wrote FILE. Can be repeated.")
def record(name: str, file: Path, commands: tuple[str, ...]) -> None:
    """Keep what FILE holds as the figures NAME."""
    try:
        figures = recorded(json.loads(file.read_text(encoding="utf-8")), commands)
    except ValueError as error:
        raise click.ClickException(f"{file}: {error}") from error
    (FIGURES / f"{name}.json").write_text(as_text(figures), encoding="utf-8")


@main.command()
def write() -> None:
    """Renew the tables of the documents."""
    for document in DOCUMENTS:
        document.write_text(written(document.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
