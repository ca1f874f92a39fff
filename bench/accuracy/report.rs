//! The document.

use std::{
    fmt::Write,
    process::Command,
    thread::available_parallelism,
    time::{Duration, SystemTime},
};

use super::{Arguments, Findings, cases::CASES};

/// The text before the table.
pub(crate) const READING: &str = include_str!("reading.md");

/// Returns the document.
pub(crate) fn document(arguments: &Arguments, findings: &[Findings]) -> String {
    let mut text = READING.to_owned();
    write(&mut text, arguments, findings).expect("writing to a string succeeds");
    text
}

fn write(text: &mut String, arguments: &Arguments, findings: &[Findings]) -> std::fmt::Result {
    let Arguments { seconds, gateways, clients, .. } = arguments;
    let cores = available_parallelism().map_or(0, usize::from);
    let date = humantime::format_rfc3339_seconds(SystemTime::now());
    writeln!(text, "\n## Findings\n")?;
    writeln!(
        text,
        "{date}: tollgate {} ({}), {}, {cores} cores; {gateways} gateways, {clients} clients, {seconds} s per case.\n",
        env!("CARGO_PKG_VERSION"),
        first_line("git", &["describe", "--always", "--dirty"]),
        first_line("redis-server", &["--version"]).split(" sha=").next().unwrap_or_default(),
    )?;
    writeln!(
        text,
        "| case | asked | admitted | fallback | of ideal | over: record | lost | over: upstream | no grant | refused \
         | wrong | too short | 5xx | none | p99 | longest |\n|---|{}",
        "--:|".repeat(15)
    )?;
    findings.iter().try_for_each(|findings| write_row(text, findings))?;
    write_summary(text, findings)?;
    writeln!(text, "\n## Cases\n\n| case | failure |\n|---|---|")?;
    CASES.iter().try_for_each(|case| writeln!(text, "| {} | {} |", case.name, case.says))
}

fn write_row(text: &mut String, row: &Findings) -> std::fmt::Result {
    let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1_000.0);
    let cells = [
        row.case.to_owned(),
        row.requests.to_string(),
        row.admitted.to_string(),
        row.by_fallback.to_string(),
        or_dash(row.of_ideal.map(|share| format!("{:.1} %", share * 100.0))),
        or_dash(row.over_by_record),
        row.lost.to_string(),
        format!("{} ({})", row.over, or_dash(row.over_explained)),
        or_dash(row.without_grant),
        row.refused.to_string(),
        or_dash(row.wrongly_refused),
        or_dash(row.rejected_retries.map(|short| format!("{short} of {}", row.retries))),
        row.failed.to_string(),
        row.unanswered.to_string(),
        ms(row.p99),
        ms(row.longest),
    ];
    writeln!(text, "| {} |", cells.join(" | "))
}

fn or_dash(figure: Option<impl ToString>) -> String {
    figure.map_or("–".to_owned(), |figure| figure.to_string())
}

/// Writes a summary of the table.
fn write_summary(text: &mut String, findings: &[Findings]) -> std::fmt::Result {
    let faults: Vec<String> = findings.iter().flat_map(Findings::faults).collect();
    writeln!(text, "\n## Results\n")?;
    if faults.is_empty() {
        writeln!(text, "No bound was exceeded.\n")?;
    } else {
        writeln!(text, "Exceeded bounds:\n")?;
        faults.iter().try_for_each(|fault| writeln!(text, "- {fault}"))?;
        writeln!(text)?;
    }
    let recorded = || findings.iter().filter_map(|row| Some((row.case, row.over_by_record?, row.lost)));
    let within = recorded().filter(|(_, over, _)| *over == 0).count();
    writeln!(
        text,
        "- By the record, {within} of {} cases had at most L in every window.",
        recorded().count()
    )?;
    for (case, over, lost) in recorded().filter(|(_, over, lost)| over + lost > 0) {
        writeln!(text, "- `{case}`: {over} permits beyond L in a window; {lost} were lost in a window.")?;
    }
    let alone = || findings.iter().filter_map(|row| Some((row.rejected_retries?, row.retries)));
    writeln!(
        text,
        "- The client with a key of its own retried {} times at the stated time, and was refused {} times.",
        alone().map(|(_, retries)| retries).sum::<usize>(),
        alone().map(|(short, _)| short).sum::<usize>(),
    )?;
    let least = findings.iter().filter_map(|row| Some((row.of_ideal?, row.case)));
    if let Some((share, case)) = least.min_by(|left, right| left.0.total_cmp(&right.0)) {
        writeln!(
            text,
            "- The fewest requests were admitted in `{case}`: {:.1} % of the ideal.",
            share * 100.0
        )?;
    }
    if let Some(slowest) = findings.iter().max_by_key(|row| row.longest) {
        writeln!(
            text,
            "- The longest response time was {:.0} ms, in `{}`.",
            slowest.longest.as_secs_f64() * 1_000.0,
            slowest.case
        )?;
    }
    Ok(())
}

/// Returns the first line that a command prints, or `unknown`.
fn first_line(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(command).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").to_owned()
}
