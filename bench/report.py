"""The figures as tables: for a terminal, and for a document."""

import measure
from cases import CASES, invalidity
from processes import Invalid

# Title, figure, form.
COLUMNS = [
    ("req/s", "requests_per_s", "9.0f"),
    ("gateway µs", "gateway_us", "12.2f"),
    ("redis µs", "redis_us", "10.2f"),
    ("total µs", "total_us", "10.2f"),
    ("p50 µs", "p50_us", "8.0f"),
    ("p99 µs", "p99_us", "8.0f"),
    ("not 2xx", "not_2xx", "9.0%"),
    ("peak MiB", "peak_mib", "10.1f"),
]
MARKS = "<!-- figures: bench/run.py --markdown -->", "<!-- end of the figures -->"


def medians(rounds):
    """Returns the figures of a row; none if it is invalid."""
    return {} if invalidity(rounds) else measure.medians(rounds)


def cells(rounds):
    """Returns a row's figures as texts, with a dash for missing ones."""
    figures = medians(rounds)
    return [format(figures[name], form) if name in figures else "–".rjust(width(form)) for _, name, form in COLUMNS]


def width(form):
    return int(form.partition(".")[0])


def judgements(results):
    """Returns the judgements of all cases whose rows were measured."""
    return [case.judge(results) for case in CASES if case.is_measured(results)]


def records(results):
    """Returns the judgements in a form for programs."""
    return [
        {
            "case": judgement.case.text,
            "unit": judgement.case.unit,
            "rounds": judgement.figures,
            "required": judgement.case.required,
            "goal": judgement.case.goal,
            "verdict": judgement.verdict,
        }
        for judgement in judgements(results)
    ]


def of_judgement(judgement):
    """Median, range, requirement, goal, verdict."""
    case, figures = judgement.case, judgement.figures
    unit = f" {case.unit}" if case.unit else ""
    demands = [f"{demand:g}{unit}" if demand is not None else "" for demand in (case.required, case.goal)]
    if not figures:
        return ["–", "", *demands, judgement.verdict]
    middle, least, most = map(shown, (judgement.median, min(figures), max(figures)))
    return [middle + unit, f"{least} to {most}", *demands, judgement.verdict]


def shown(value):
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def print_tables(results):
    loaded = {name: rounds for name, rounds in results.items() if invalidity(rounds) or "p50_us" in rounds[0]}
    if loaded:
        print(f"\n{'row':30}" + "".join(f"{title:>{width(form)}}" for title, _, form in COLUMNS))
    for name, rounds in loaded.items():
        reason = invalidity(rounds)
        print(f"{name:30}" + (f"  INVALID: {reason}" if reason else "".join(cells(rounds))))
    judged = judgements(results)
    if judged:
        print(f"\n{'case':66}{'median':>10}{'rounds':>16}{'required':>10}{'goal':>10}")
    for judgement in judged:
        median, rounds, required, goal, verdict = of_judgement(judgement)
        line = f"{judgement.case.text:66}{median:>10}{rounds:>16}{required:>10}{goal:>10}  {verdict}"
        print(line.rstrip())


def markdown(results, about, drawing):
    """Returns the figures of a run as part of a document. `drawing` is the relative path of the plot, if any."""
    lines = [f"{about}.", ""]
    if drawing:
        lines += [f"![CPU time per request, beside the peers]({drawing})", ""]
    lines += ["| case | median | rounds | required | goal | |", "|---|--:|--:|--:|--:|---|"]
    for judgement in judgements(results):
        lines.append(f"| {judgement.case.text} | {' | '.join(of_judgement(judgement))} |")
    lines += ["", f"| row | {' | '.join(title for title, _, _ in COLUMNS)} |", "|---" + "|--:" * len(COLUMNS) + "|"]
    for name, rounds in results.items():
        reason = invalidity(rounds)
        if reason:
            lines.append(f"| `{name}` | invalid: {reason} |")
        elif "p50_us" in rounds[0]:
            lines.append(f"| `{name}` | {' | '.join(cell.strip() for cell in cells(rounds))} |")
    return "\n".join(lines)


def insert(document, part, marks=MARKS):
    """Replaces the part of a document between the marks."""
    check(document, marks)
    begin, end = marks
    text = document.read_text()
    before, after = text.split(begin)[0], text.split(end)[1]
    document.write_text(f"{before}{begin}\n\n{part}\n\n{end}{after}")


def check(document, marks=MARKS):
    """Raises Invalid if a document has no marks for the figures."""
    begin, end = marks
    text = document.read_text()
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise Invalid(f"{document} needs, once each and in this order, the lines\n{begin}\n{end}")
