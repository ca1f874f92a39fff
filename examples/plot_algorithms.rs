//! Draws docs/algorithms.svg: the requests that each algorithm admits of one pattern of bursts, in virtual
//! time.
//!
//!     cargo run --example plot_algorithms > docs/algorithms.svg

#![allow(clippy::print_stdout, reason = "the drawing goes there")]

use std::fmt::{self, Display, Formatter};

use tollgate_limiter::{Algorithm, Quota, Rate, algorithm::State};

const SECOND: u64 = 1_000_000;
/// The width of a bin in the histogram: a quarter of a second.
const BIN_US: u64 = SECOND / 4;
const END_US: u64 = 30 * SECOND;
/// The time for which a request is in flight, for concurrency.
const SERVED_US: u64 = SECOND;
const RATE: Rate = Rate { permits: 20, window_us: 10 * SECOND };

/// The bursts: begin, end, and time between two requests.
const BURSTS: [(u64, u64, u64); 3] = [
    (SECOND, SECOND + SECOND / 2, SECOND / 4),
    (9 * SECOND + SECOND / 2, 12 * SECOND, SECOND / 20),
    (15 * SECOND, 30 * SECOND, SECOND / 6),
];

struct Panel {
    name: &'static str,
    algorithm: Algorithm,
    permits: u32,
    says: &'static str,
}

const PANELS: [Panel; 5] = [
    Panel {
        name: "sliding-window",
        algorithm: Algorithm::SlidingWindow,
        permits: RATE.permits,
        says: "20/10s: what came at one time comes back 10 s later",
    },
    Panel {
        name: "sliding-cells",
        algorithm: Algorithm::SlidingCells { cells: 5 },
        permits: RATE.permits,
        says: "20/10s in 5 cells: the same, in steps of up to 2 s",
    },
    Panel {
        name: "fixed-window",
        algorithm: Algorithm::FixedWindow,
        permits: RATE.permits,
        says: "20/10s: all comes back at once, at the window's end",
    },
    Panel {
        name: "gcra",
        algorithm: Algorithm::Gcra { burst: Some(10) },
        permits: RATE.permits,
        says: "20/10s with a burst of 10: then evenly, one in 500 ms",
    },
    Panel {
        name: "concurrency",
        algorithm: Algorithm::Concurrency,
        permits: 4,
        says: "4 at a time, each served in 1 s",
    },
];

/// Returns the arrival times of the requests.
fn arrivals() -> impl Iterator<Item = u64> {
    BURSTS.iter().flat_map(|(from_us, to_us, every_us)| (*from_us..*to_us).step_by(*every_us as usize))
}

/// Returns the number of instants in each bin.
fn histogram(instants: impl Iterator<Item = u64>) -> Vec<u32> {
    let mut bins = vec![0; (END_US / BIN_US) as usize];
    instants.for_each(|at_us| bins[(at_us / BIN_US) as usize] += 1);
    bins
}

/// Returns the arrivals that are admitted. Rejected requests aren't retried.
fn admitted(panel: &Panel) -> Vec<u64> {
    let window_us = if panel.algorithm == Algorithm::Concurrency { SERVED_US } else { RATE.window_us };
    let quota = Quota { algorithm: panel.algorithm, permits: panel.permits, window_us };
    let mut state = State::new(panel.algorithm);
    // So that no window begins before zero.
    let clock_us = |at_us: u64| at_us + Rate::MAX_WINDOW_US;
    arrivals()
        .filter(|at_us| {
            let time_us = clock_us(*at_us);
            state.count_mut().advance(quota, time_us);
            let fits = state.delay_us(quota, time_us, 1) == Some(0);
            if fits {
                state.count_mut().charge(quota, time_us, 1);
            }
            fits
        })
        .collect()
}

/// Returns the most instants within a window.
fn most_within(instants: &[u64], window_us: u64) -> usize {
    let within =
        |begin: u64| instants.iter().filter(|at_us| (begin..begin + window_us).contains(at_us)).count();
    instants.iter().map(|begin| within(*begin)).max().unwrap_or(0)
}

const WIDTH: u64 = 760;
const LEFT: u64 = 40;
const PANEL_HEIGHT: u64 = 112;
const BARS_HEIGHT: u64 = 60;
/// The requests per bin at the top of a panel.
const TOP: u64 = 6;

/// The drawing. It is displayed as SVG.
pub(crate) struct Drawing;

impl Display for Drawing {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let height = PANEL_HEIGHT * PANELS.len() as u64 + 36;
        writeln!(
            f,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-label="Requests that each algorithm admits of the same bursts, over 30 seconds">"#
        )?;
        writeln!(
            f,
            "<style>text {{ font: 12px sans-serif; fill: #57606a }} .name {{ font-weight: bold; fill: #1f6feb }} \
             .came {{ fill: #8c959f; fill-opacity: 0.45 }} .admitted {{ fill: #1f6feb }} line {{ stroke: #8c959f }} \
             @media (prefers-color-scheme: dark) {{ text {{ fill: #9da7b3 }} .name, .admitted {{ fill: #58a6ff }} }}\
             </style>"
        )?;
        for (at, panel) in PANELS.iter().enumerate() {
            draw_panel(f, panel, PANEL_HEIGHT * at as u64)?;
        }
        let legend = height - 6;
        writeln!(
            f,
            r#"<text x="{LEFT}" y="{legend}">seconds across; requests in a quarter of a second upwards: grey came, blue was admitted</text>"#
        )?;
        writeln!(f, "</svg>")
    }
}

fn draw_panel(f: &mut Formatter<'_>, panel: &Panel, top: u64) -> fmt::Result {
    let taken = admitted(panel);
    let ground = top + 34 + BARS_HEIGHT;
    let y_of = |requests: u64| ground - requests * BARS_HEIGHT / TOP;
    let x_of = |at_us: u64| LEFT + at_us * (WIDTH - LEFT - 10) / END_US;
    let title = top + 20;
    writeln!(
        f,
        r#"<text x="{LEFT}" y="{title}"><tspan class="name">{}</tspan> {}. {} admitted, at most {} within 10 s</text>"#,
        panel.name,
        panel.says,
        taken.len(),
        most_within(&taken, RATE.window_us),
    )?;
    bars(f, "came", &histogram(arrivals()), x_of, y_of)?;
    bars(f, "admitted", &histogram(taken.iter().copied()), x_of, y_of)?;
    let right = x_of(END_US);
    writeln!(f, r#"<line x1="{LEFT}" y1="{ground}" x2="{right}" y2="{ground}"/>"#)?;
    for requests in [0, TOP / 2, TOP] {
        let y = y_of(requests) + 4;
        writeln!(f, r#"<text x="{}" y="{y}" text-anchor="end">{requests}</text>"#, LEFT - 6)?;
    }
    for seconds in (0..=END_US / SECOND).step_by(5) {
        let (x, y) = (x_of(seconds * SECOND), ground + 14);
        writeln!(f, r#"<text x="{x}" y="{y}" text-anchor="middle">{seconds}</text>"#)?;
    }
    Ok(())
}

/// Writes one path for all bins, to keep the file small.
fn bars(
    f: &mut Formatter<'_>,
    class: &str,
    bins: &[u32],
    x_of: impl Fn(u64) -> u64,
    y_of: impl Fn(u64) -> u64,
) -> fmt::Result {
    write!(f, r#"<path class="{class}" d=""#)?;
    for (bin, requests) in bins.iter().enumerate().filter(|(_, requests)| **requests > 0) {
        let (from, to) = (x_of(bin as u64 * BIN_US), x_of((bin as u64 + 1) * BIN_US) - 1);
        let (top, ground) = (y_of(u64::from(*requests)), y_of(0));
        write!(f, "M{from} {ground}V{top}H{to}V{ground}z")?;
    }
    writeln!(f, r#""/>"#)
}

fn main() {
    print!("{Drawing}");
}
