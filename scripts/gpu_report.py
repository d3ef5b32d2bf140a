"""Results of `gpu_checks.py` as the Markdown tables of docs/benchmarks.md.

python scripts/gpu_report.py gpu_checks/results.json
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Found = Mapping[str, Any]
Row = Mapping[str, Any]


def main() -> int:
    parser = ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("results", type=Path, help="results.json of gpu_checks.py")
    path: Path = parser.parse_args().results
    try:
        results = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        print(f"{path} holds no results: {error}", file=sys.stderr)
        return 1
    print(report(results))
    return 0


def report(results: Found) -> str:
    """The whole report, without sections that did not run."""
    parts = []
    for name, write in SECTIONS.items():
        found = results["sections"].get(name)
        if found is None:
            continue
        parts.append("\n\n".join([f"### {TITLES[name]}", *filter(None, (*write(found), *problems(found)))]))
    return "\n\n".join(parts) + "\n"


# --- Pure parts ---


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; empty without rows."""
    lines = [f"| {' | '.join(cell(each) for each in row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(header)} |", "|---" * len(header) + "|", *lines]) if lines else ""


def cell(value: Any) -> str:
    """A number with three significant digits; "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, bool | str):
        return str(value).replace("|", "\\|")
    if isinstance(value, int) or (abs(value) >= 100 and float(value).is_integer()):
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def millions(value: float | None) -> str:
    """A rate in millions per second."""
    return "-" if value is None else f"{value / 1e6:.3g}"


def wide(rows: Sequence[Row], lines: Sequence[str], columns: Sequence[str], value: str, scale: float = 1.0) -> str:
    """A table of `value` with a line per combination of the settings `lines`, and a column per combination of `columns`."""
    heads = list(dict.fromkeys(tuple(row[name] for name in columns) for row in rows))
    sides = list(dict.fromkeys(tuple(row[name] for name in lines) for row in rows))
    cells = {(tuple(row[n] for n in lines), tuple(row[n] for n in columns)): scale * row[value] for row in rows}
    titles = [*lines, *(" ".join(map(str, head)) for head in heads)]
    return table(titles, [[*side, *(cells.get((side, head)) for head in heads)] for side in sides])


def problems(found: Found) -> list[str]:
    """The missing measurements of a section: a line for each reason."""
    lines = []
    if found.get("status") != "done":
        lines.append(f"The section {found.get('status')}.")
    if found.get("traceback"):
        lines.append("```\n" + "\n".join(found["traceback"]) + "\n```")
    reasons: dict[str, int] = {}
    for row in found.get("not_measured", []):
        reasons[row["reason"]] = reasons.get(row["reason"], 0) + 1
    lines += [f"- not measured, {count} times: {why}" for why, count in reasons.items()]
    if isinstance(found.get("out_of_time"), Mapping):
        lines += [f"- not measured for want of time: {count} of {name}" for name, count in found["out_of_time"].items()]
    return ["\n".join(lines)] if lines else []


# --- Sections ---


def of_tests(found: Found) -> list[str]:
    if "passed" not in found:
        return [str(found.get("skipped", "Nothing was run."))]
    failed, skipped = found["failed"], found["skipped"]
    counts = f"{found['passed']} passed, {len(failed)} failed, {len(skipped)} skipped"
    ended = f"; ended after {found['ended_after']:.0f} s, before all were done" if "ended_after" in found else ""
    lines = [f"- failed: {each['test']}: {each['message']}" for each in failed]
    lines += [f"- skipped: {each['test']}: {each['message']}" for each in skipped]
    return [f"{counts}{ended}.", "\n".join(lines), of_kernels(found.get("kernels"))]


def of_kernels(kernels: Found | None) -> str:
    """What `net.backend=auto` takes from now on."""
    if kernels is None:
        return ""
    if not kernels["problems"]:
        return f"`net.backend=auto` takes the Triton kernels on this GPU from now on ({kernels['report']})."
    return f"`net.backend=auto` takes PyTorch's operations on this GPU: {kernels['problems'][0]}."


def of_machine(found: Found) -> list[str]:
    names = ("gpu", "memory_gib", "driver", "cuda", "cores", "python", "torch", "triton", "numpy")
    told = ", ".join(f"{name} {cell(found[name])}" for name in names if found.get(name) is not None)
    peaks = [
        ("products in " + name, each, "TFLOP/s") for name, each in found.get("peaks", {}).items() if name != "copy"
    ]
    peaks += [("copy on the device", found.get("peaks", {}).get("copy"), "GB/s")]
    for name, each in found.get("transfers", {}).items():
        large = name.endswith("gb_s")
        peaks.append(
            (f"{'large' if large else 'small'} copies to the {'device' if 'device' in name else 'host'}",)
            + (each, "GB/s" if large else "us")
        )
    peaks += [
        (f"empty kernel, {name.replace('_', ' ')}", each, "us") for name, each in found.get("launch_us", {}).items()
    ]
    missing = ", ".join(found.get("missing", [])) or "nothing"
    return [f"{told}. Not installed: {missing}.", table(["peak", "measured", ""], peaks)]


def of_parity(found: Found) -> list[str]:
    names = ["log_prob", "entropy", "value", "gradient", "gradient_relative", "same_actions"]
    rows = [
        [row["frames"], row["backend"], row["precision"], *(row[n] for n in names)] for row in found.get("parity", [])
    ]
    return [table(["frames", "backend", "precision", *(name.replace("_", " ") for name in names)], rows)]


def of_attention(found: Found) -> list[str]:
    rows, kinds, parts = found.get("attention", []), ("backend", "precision"), []
    for name, title in (("forward_us", "Forward"), ("both_us", "Forward and backward")) if rows else ():
        parts.append(f"{title}, microseconds for {cell(found['tokens'])} tokens of width {found['width']}:")
        parts.append(wide(rows, ("head_width", "mean"), kinds, name))
    return parts


def of_glue(found: Found) -> list[str]:
    names = ["forward_us", "compiled_forward_us", "both_us", "compiled_both_us"]
    rows = [
        [row["part"], row["width"], row["precision"], *(row.get(name) for name in names)]
        for row in found.get("glue", [])
    ]
    header = ["part", "width", "precision", "forward", "compiled", "forward and backward", "compiled"]
    told = f"Microseconds for {cell(found['tokens'])} tokens, as it is and by torch.compile:"
    return [told, table(header, rows)] if rows else []


def of_policy(found: Found) -> list[str]:
    parts = []
    for row_name, title in (("act", "Acting"), ("update", "Learning")):
        text = wide(found.get("policy", []), ("width", "mean"), ("backend", "precision"), f"{row_name}_frames_s", 1e-6)
        parts += [f"{title}, million frames/s:", text] if text else []
    names = ["width", "mean", "precision", "backend"]
    rows = [
        [*(row[name] for name in names), millions(row["update_frames_s"]), row["update_tflops"], row["update_of_peak"]]
        for row in found.get("best", [])
    ]
    header = [*names, "update, million frames/s", "TFLOP/s", "of the measured peak"]
    return [*parts, "The fastest backend:", table(header, rows)] if rows else parts


KNOBS = ("num_envs", "batch_size", "env_threads", "backend", "precision", "compile", "pipeline")


def of_headline(found: Found) -> list[str]:
    rows = sorted(found.get("speed", []), key=lambda row: (row["world"], -row["steps_per_second"]))
    speeds = [
        [row["world"], *(row[name] for name in KNOBS), millions(row["steps_per_second"])]
        + [millions(row["entities_per_second"]), row["share_env"], row["share_act"], row["share_update"]]
        for row in rows
    ]
    header = ["world", *KNOBS, "million steps/s", "million entities/s", "environments", "acting", "learning"]
    curves = [
        [row["world"], row["relpos"], millions(row["steps_per_second"]), row["trained_steps"], row["seconds"]]
        + [row["steps_to_score"], row["seconds_to_score"], row["evaluated_sampled"], row["evaluated_greedy"]]
        for row in found.get("learning", [])
    ]
    titles = [
        "world",
        "relative positions",
        "million steps/s",
        "steps",
        "seconds",
        "steps to the score",
        "seconds to it",
    ]
    return [table(header, speeds), table([*titles, "evaluated, sampled", "evaluated, greedy"], curves)]


def of_steps(found: Found) -> list[str]:
    parts = []
    for row in found.get("steps", []):
        knobs = ", ".join(f"{name}={row[name]}" for name in KNOBS)
        total = sum(row["phases_s"].values())
        phases = sorted(row["phases_s"].items(), key=lambda each: -each[1])
        parts.append(
            f"{row['world']}, {knobs}: an update of {cell(row['frames'])} frames takes {1e3 * row['unsynchronised_s']:.1f} ms, "
            f"and {1e3 * total:.1f} ms with a synchronisation at every border; {cell(row['kernel_launches'])} kernels have "
            f"{row['kernels_us'] / 1e3:.1f} ms of it."
        )
        parts.append(table(["phase", "ms", "share"], [(name, 1e3 * each, each / total) for name, each in phases]))
        floors = [(kind, row["floors"][kind]) for kind in ("act", "update")]
        header = ["floor", "GFLOP", "MB", "operations, ms", "bytes, ms", "larger"]
        parts.append(
            table(
                header,
                [
                    (kind, e["gflop"], e["megabytes"], 1e3 * e["flops_s"], 1e3 * e["bytes_s"], e["larger"])
                    for kind, e in floors
                ],
            )
        )
        parts.append(table(["kernel", "us", "count"], [(e["kernel"], e["us"], e["count"]) for e in row["kernels"]]))
    return parts


def of_memory(found: Found) -> list[str]:
    rows = found.get("memory", [])
    names = list(dict.fromkeys(name for row in rows for name in row["bytes_per_frame"]))
    worlds = [row["world"] for row in rows]
    kept = [[name, *(row["bytes_per_frame"].get(name) for row in rows)] for name in names]
    kept += [["all", *(row["bytes_per_frame_all"] for row in rows)]]
    kept += [["entities a frame", *(row["entities_per_frame"] for row in rows)]]
    kept += [["acting, at most", *(row["act_peak_bytes_per_frame"] for row in rows)]]
    kept += [["learning, at most", *(row["update_peak_bytes_per_frame"] for row in rows)]]
    kept += [["grown in 20 updates, MiB", *(row["grown_mib"] for row in rows)]]
    return [table(["bytes a frame", *worlds], kept)] if rows else []


SECTIONS = {
    "machine": of_machine,
    "tests": of_tests,
    "headline": of_headline,
    "steps": of_steps,
    "policy": of_policy,
    "attention": of_attention,
    "glue": of_glue,
    "memory": of_memory,
    "parity": of_parity,
}
TITLES = {
    "machine": "The machine",
    "tests": "Tests",
    "headline": "Training",
    "steps": "Where an update's time goes",
    "policy": "The policy",
    "attention": "Attention alone",
    "glue": "Between attention and matrix products",
    "memory": "Memory",
    "parity": "The device against the CPU",
}


if __name__ == "__main__":
    raise SystemExit(main())
