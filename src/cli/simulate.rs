//! `tollgate simulate`: replays access logs, and prints what the limits would have done.

use std::{
    fmt::{self, Write},
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use hyper::header::HeaderValue;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    config::{Config, FlagOverrides},
    simulate::{
        AtLeast, Changes, LimitReport, Logs, Report, Simulation, Smallest, requests_text, thousands as count,
    },
};

use super::{complain, fail, say};

/// The logs, and the configurations to replay them with.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tollgate simulate access.log access.log.1.gz --config gateway.toml
  zcat *.gz | tollgate simulate - --config next.toml --against gateway.toml --report report.html

Exit status: 0 replayed; 1 a log can't be read or has lines but no request, or the report can't be written; 2 wrong usage or an
invalid file.
Environment variables: those that the file names as ${NAME}; NO_COLOR turns colour off.")]
pub(super) struct Simulate {
    /// Access logs in combined or JSON lines format, also compressed with gzip; - is stdin
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// Configuration file to replay the logs with
    #[arg(long, value_name = "FILE", default_value = "gateway.toml")]
    config: PathBuf,
    /// Configuration file that is in force now: shows what the other one would change
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Host of requests without one in the log
    #[arg(long, value_name = "HOST", value_parser = HeaderValue::from_str)]
    host: Option<HeaderValue>,
    /// Write an HTML report with plots
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Simulate {
    /// Runs the command.
    pub(super) fn main(self) -> ExitCode {
        let read = |file: &PathBuf| Config::read(file, &FlagOverrides::default()).map(|(config, _)| config);
        let configs =
            read(&self.config).and_then(|config| Ok((config, self.against.as_ref().map(read).transpose()?)));
        let (config, against) = match configs {
            Ok(configs) => configs,
            Err(faults) => {
                complain(&faults);
                return ExitCode::from(2);
            }
        };
        let simulation = Simulation { config: &config, against: against.as_ref(), host: self.host.clone() };
        match self.replay(&simulation).and_then(|report| self.print(&report)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                fail(&error.to_string());
                ExitCode::FAILURE
            }
        }
    }

    fn replay(&self, simulation: &Simulation<'_>) -> io::Result<Report> {
        let bar = ProgressBar::new(0);
        let style = "{elapsed_precise} [{bar:40}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        bar.set_style(ProgressStyle::with_template(style).expect("a good template").progress_chars("=> "));
        let files = self.logs.iter().map(|path| {
            let name = path.display().to_string();
            let from: Box<dyn Read> = match &*name {
                "-" => Box::new(io::stdin()),
                _ => {
                    let file = File::open(path).map_err(|cause| about("read", path, &cause))?;
                    bar.inc_length(file.metadata().map_or(0, |data| data.len()));
                    Box::new(file)
                }
            };
            Ok((name, Box::new(bar.wrap_read(from)) as Box<dyn Read>))
        });
        let report = simulation.run(Logs::open(files.collect::<io::Result<_>>()?)?);
        bar.finish_and_clear();
        report
    }

    fn print(&self, report: &Report) -> io::Result<()> {
        if let Some(path) = &self.report {
            fs::write(path, report.page()).map_err(|cause| about("write", path, &cause))?;
        }
        if self.json {
            say(format_args!("{}\n", serde_json::to_string_pretty(report)?));
        } else {
            say(format_args!("{}", text(report)));
        }
        Ok(())
    }
}

fn about(what: &str, path: &Path, cause: &io::Error) -> io::Error {
    io::Error::new(cause.kind(), format!("can't {what} `{}`: {cause}", path.display()))
}

/// Returns the report as text for people.
fn text(report: &Report) -> String {
    let mut text = String::new();
    write_to(&mut text, report).expect("writing to a string succeeds");
    text
}

fn write_to(text: &mut String, report: &Report) -> fmt::Result {
    let Report { lines, requests, .. } = report;
    let (from, to) = (report.from.as_deref().unwrap_or("-"), report.to.as_deref().unwrap_or("-"));
    writeln!(text, "{} from {from} to {to}", requests_text(requests.all))?;
    let others = [
        (requests.admitted, "admitted"),
        (requests.refused, "refused"),
        (requests.unrouted, "without a route"),
        (requests.rejected, "rejected"),
        (requests.undecided, "undecided"),
    ];
    let others = others.iter().filter(|(requests, _)| *requests > 0);
    let others: Vec<_> = others.map(|(requests, what)| format!("{} {what}", count(*requests))).collect();
    writeln!(text, "{}", others.join(", "))?;
    if lines.unreadable > 0 {
        writeln!(text, "{} of {} lines can't be parsed:", count(lines.unreadable), count(lines.lines))?;
        for named in &lines.named {
            writeln!(text, "  {}:{}: {}", named.file.escape_debug(), named.line, named.reason)?;
        }
    }
    for note in &report.notes {
        writeln!(text, "note: {note}")?;
    }
    write_limits(text, &report.limits)?;
    if let Some(changes) = &report.against {
        write_changes(text, changes)?;
    }
    Ok(())
}

fn write_limits(text: &mut String, limits: &[LimitReport]) -> fmt::Result {
    writeln!(text)?;
    write_table(text, limits)?;
    writeln!(text)?;
    for limit in limits.iter().filter(|limit| limit.judged) {
        if let Some(Smallest { first, above_first, .. }) = &limit.smallest {
            let (name, keys) = (&limit.limit, count(limit.keys as u64));
            writeln!(text, "{name}: begin with {}, which {above_first} of {keys} keys exceed", first.rate)?;
        }
    }
    limits.iter().try_for_each(|limit| write_busiest(text, limit))
}

/// Writes a table with a row for each limit. Its first two columns are aligned left, the others right.
fn write_table(text: &mut String, limits: &[LimitReport]) -> fmt::Result {
    let rows: Vec<_> = [COLUMNS.map(str::to_owned)].into_iter().chain(limits.iter().map(row)).collect();
    let widths: [usize; COLUMNS.len()] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 | 1 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

const COLUMNS: [&str; 11] = [
    "LIMIT",
    "RATE",
    "REQUESTS",
    "KEYS",
    "REFUSED",
    "SHARE",
    "KEYS REFUSED",
    "USE P99",
    "FOR ALL",
    "FOR 99 %",
    "FOR 95 %",
];

fn row(limit: &LimitReport) -> [String; COLUMNS.len()] {
    let smallest = |rate: fn(&Smallest) -> &AtLeast| {
        let bound = |smallest: &Smallest| if smallest.is_exact { "" } else { "≤ " };
        let written = |smallest: &Smallest| format!("{}{}", bound(smallest), rate(smallest).rate);
        limit.smallest.as_ref().map_or("-".to_owned(), written)
    };
    let name = if limit.shadows { format!("{} (shadow)", limit.limit) } else { limit.limit.clone() };
    [
        name,
        limit.rate.clone(),
        count(limit.requests),
        count(limit.keys as u64),
        count(limit.refused),
        format!("{:.2} %", limit.refused_percent),
        count(limit.keys_refused as u64),
        limit.use_p99_percent.map_or("-".to_owned(), |percent| format!("{percent:.0} %")),
        smallest(|smallest| &smallest.nobody),
        smallest(|smallest| &smallest.one_percent),
        smallest(|smallest| &smallest.five_percent),
    ]
}

fn write_busiest(text: &mut String, limit: &LimitReport) -> fmt::Result {
    if limit.busiest.is_empty() {
        return Ok(());
    }
    writeln!(text, "\nbusiest keys of {}, with the demand in their busiest window:", limit.limit)?;
    for busy in &limit.busiest {
        writeln!(
            text,
            "  {}  {}, {} refused, demand {} ({:.0} %)",
            busy.key,
            requests_text(busy.requests),
            count(busy.refused),
            count(busy.peak),
            busy.use_percent
        )?;
    }
    Ok(())
}

fn write_changes(text: &mut String, changes: &Changes) -> fmt::Result {
    writeln!(
        text,
        "\nchanges from the file of --against: {} newly refused, {} newly admitted",
        count(changes.newly_refused),
        count(changes.newly_admitted)
    )?;
    for (what, limits) in [("refused now", &changes.refused_by), ("refused before", &changes.admitted_by)] {
        for limit in limits {
            writeln!(text, "  {what} by {}: {}", limit.limit, count(limit.requests))?;
            for (key, requests) in &limit.keys {
                writeln!(text, "    {key}  {}", count(*requests))?;
            }
        }
    }
    Ok(())
}
