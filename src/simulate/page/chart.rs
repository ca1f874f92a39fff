//! The charts of the report, as SVG.

use std::{
    fmt::{self, Display, Write},
    time::{Duration, UNIX_EPOCH},
};

use super::{
    super::report::{Bars, LimitReport, Smallest, thousands},
    Escaped,
};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 240.0;
/// The space for the labels of an axis.
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 28.0;
const TOP: f64 = 16.0;

/// Draws the share of keys with a refused request, by rate.
pub(super) fn write_curve(page: &mut String, limit: &LimitReport, smallest: &Smallest) -> fmt::Result {
    let window = limit.rate.split_once('/').map(|(_, window)| format!("permits per {window}"));
    write!(
        page,
        "<h3>Keys with a refused request, by rate <small>{}</small></h3>",
        Escaped(window.as_deref().unwrap_or("requests at a time"))
    )?;
    begin_drawing(page, "share of the keys with a refused request, by rate")?;
    let axis = RateAxis::of(limit);
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        write_line_of_grid(page, y_of_percent(percent), format_args!("{percent} %"))?;
    }
    for rate in ticks(axis.least, axis.most) {
        let (x, y) = (axis.x(rate as f64), HEIGHT - 8.0);
        write!(page, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", thousands(rate))?;
    }
    write_steps(page, &axis, &limit.curve)?;
    write_marks(page, &axis, limit, smallest)?;
    page.write_str("</svg>")
}

/// A logarithmic axis of rates.
struct RateAxis {
    least: f64,
    most: f64,
}

impl RateAxis {
    /// Returns an axis with room for all rates of a limit.
    fn of(limit: &LimitReport) -> Self {
        let most = limit.curve.iter().map(|(rate, _)| *rate).chain([limit.permits]).max().unwrap_or(1).max(2);
        let least = limit.curve.first().map_or(1, |(rate, _)| (*rate).max(1)).min(limit.permits);
        Self { least: least as f64 / 1.3, most: most as f64 * 1.3 }
    }

    fn x(&self, rate: f64) -> f64 {
        LEFT + (WIDTH - LEFT) * (rate.max(self.least) / self.least).ln() / (self.most / self.least).ln()
    }
}

fn y_of_percent(percent: f64) -> f64 {
    TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - percent / 100.0)
}

/// Draws the curve, which is constant between its points, and the area below it.
fn write_steps(page: &mut String, axis: &RateAxis, curve: &[(u64, f64)]) -> fmt::Result {
    let first = curve.first().map_or(0.0, |(_, percent)| *percent);
    let mut path = format!("M{:.1} {:.1}", axis.x(axis.least), y_of_percent(first));
    for (rate, percent) in curve {
        write!(path, "H{:.1}V{:.1}", axis.x(*rate as f64), y_of_percent(*percent))?;
    }
    write!(path, "H{WIDTH:.1}")?;
    write!(
        page,
        "<path class=\"area\" d=\"{path}V{:.1}H{:.1}Z\"/><path class=\"curve\" d=\"{path}\"/>",
        y_of_percent(0.0),
        axis.x(axis.least)
    )
}

/// Marks the current rate and the smallest ones.
fn write_marks(page: &mut String, axis: &RateAxis, limit: &LimitReport, smallest: &Smallest) -> fmt::Result {
    let marks = [
        ("now", "now", limit.permits, limit.rate.as_str()),
        ("mark", "95 %", smallest.five_percent.permits, &smallest.five_percent.rate),
        ("mark", "99 %", smallest.one_percent.permits, &smallest.one_percent.rate),
        ("mark", "all", smallest.nobody.permits, &smallest.nobody.rate),
    ];
    for (at, (class, name, permits, rate)) in marks.iter().enumerate() {
        let (x, y_text) = (axis.x(*permits as f64), 28.0 + 24.0 * at as f64);
        let (anchor, gap) = if x > WIDTH * 0.7 { ("end", -5.0) } else { ("start", 5.0) };
        write!(
            page,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>\
             <text class=\"{class}\" x=\"{:.1}\" y=\"{y_text}\" text-anchor=\"{anchor}\">{name}: {}</text>",
            y_of_percent(0.0),
            x + gap,
            Escaped(rate)
        )?;
    }
    Ok(())
}

/// Returns the numbers to label on a logarithmic axis: powers of ten, or 1, 2 and 5 times these if there
/// would be too few.
fn ticks(least: f64, most: f64) -> Vec<u64> {
    let powers = || (0..19).map(|power| 10_u64.pow(power));
    let is_between = |number: &u64| (least..=most).contains(&(*number as f64));
    let decades: Vec<u64> = powers().filter(is_between).collect();
    match decades.len() {
        0..=2 => powers().flat_map(|power| [1, 2, 5].map(|times| power * times)).filter(is_between).collect(),
        _ => decades,
    }
}

/// Draws the requests over time, and how many of them were refused.
pub(super) fn write_bars(page: &mut String, Bars { start, seconds, bars }: &Bars) -> fmt::Result {
    let most = bars.iter().map(|bar| bar[0]).max().unwrap_or(0).max(1) as f64;
    let y = |number: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - number / most);
    let step = (WIDTH - LEFT) / bars.len().max(1) as f64;
    begin_drawing(page, "requests over time, and how many of them were refused")?;
    for part in [0.0, 0.5, 1.0] {
        write_line_of_grid(page, y(most * part), thousands((most * part).round() as u64))?;
    }
    for (at, [all, refused]) in bars.iter().enumerate() {
        let (x, width) = (LEFT + step * at as f64, (step * 0.92).max(0.5));
        for (class, number) in [("all", *all), ("refused", *refused)] {
            if number > 0 {
                let top = y(number as f64);
                write!(
                    page,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>",
                    y(0.0) - top
                )?;
            }
        }
    }
    let times = [(LEFT, "start", *start), (WIDTH, "end", start + seconds * bars.len() as u64)];
    for (x, anchor, seconds) in times {
        let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds));
        write!(page, "<text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\">{time}</text>", HEIGHT - 8.0)?;
    }
    write!(
        page,
        "</svg><p class=\"dim\"><span class=\"key all\"></span> requests in {seconds} s \
         <span class=\"key refused\"></span> refused of them</p>"
    )
}

fn begin_drawing(page: &mut String, what: &str) -> fmt::Result {
    write!(page, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{what}\">")
}

fn write_line_of_grid(page: &mut String, y: f64, label: impl Display) -> fmt::Result {
    write!(
        page,
        "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
         <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
        LEFT - 8.0,
        y + 4.0
    )
}
