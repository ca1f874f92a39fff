//! The report as a single HTML page without external resources.
//!
//! It shows keys, which are percent-encoded or hashed, and file names from the logs. Everything is escaped.

use std::fmt::{self, Display, Write};

use super::report::{Bars, Busy, Changed, LimitReport, Report, Smallest, thousands};

const STYLE: &str = include_str!("page.css");
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 240.0;
/// The space for the labels of an axis.
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 28.0;
const TOP: f64 = 16.0;

impl Report {
    /// Returns the report as an HTML page.
    pub fn page(&self) -> String {
        let mut page = String::new();
        self.write_page(&mut page).expect("writing to a string succeeds");
        page
    }

    fn write_page(&self, page: &mut String) -> fmt::Result {
        write!(
            page,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
             <title>What the limits would have done</title><style>{STYLE}</style></head><body><main>"
        )?;
        let (from, to) = (self.from.as_deref().unwrap_or("-"), self.to.as_deref().unwrap_or("-"));
        write!(
            page,
            "<h1>What the limits would have done</h1><p class=\"dim\">{from} to {to}, replayed by tollgate simulate</p>"
        )?;
        self.write_tiles(page)?;
        self.write_notes(page)?;
        page.write_str("<h2>Requests over time</h2>")?;
        write_bars(page, &self.timeline)?;
        self.limits.iter().try_for_each(|limit| write_limit(page, limit))?;
        if let Some(changes) = &self.against {
            write!(
                page,
                "<h2>Against the other file</h2><p>{} requests are newly refused, {} newly admitted.</p>",
                thousands(changes.newly_refused),
                thousands(changes.newly_admitted)
            )?;
            for (what, limits) in
                [("Refused now", &changes.refused_by), ("Refused before", &changes.admitted_by)]
            {
                limits.iter().try_for_each(|limit| write_changed(page, what, limit))?;
            }
        }
        page.write_str("</main></body></html>\n")
    }

    fn write_tiles(&self, page: &mut String) -> fmt::Result {
        let requests = &self.requests;
        let share = |part: u64| match requests.all {
            0 => String::new(),
            all => format!("{:.2} %", 100.0 * part as f64 / all as f64),
        };
        page.write_str("<div class=\"tiles\">")?;
        for (name, number, class, always) in [
            ("requests", requests.all, "", true),
            ("admitted", requests.admitted, "good", true),
            ("refused", requests.refused, "bad", true),
            ("without a route", requests.unrouted, "", false),
            ("rejected", requests.rejected, "", false),
            ("undecided", requests.undecided, "", false),
        ] {
            if always || number > 0 {
                let (share, number) = (share(number), thousands(number));
                write!(
                    page,
                    "<div class=\"tile {class}\"><b>{number}</b><span>{name}</span> <i>{share}</i></div>"
                )?;
            }
        }
        page.write_str("</div>")
    }

    fn write_notes(&self, page: &mut String) -> fmt::Result {
        if self.notes.is_empty() && self.lines.unreadable == 0 {
            return Ok(());
        }
        page.write_str("<ul class=\"notes\">")?;
        self.notes.iter().try_for_each(|note| write!(page, "<li>{}</li>", Escaped(note)))?;
        if self.lines.unreadable > 0 {
            let named = self
                .lines
                .named
                .iter()
                .map(|named| format!("{}:{}: {}", named.file, named.line, named.reason));
            let named = named.collect::<Vec<_>>().join("; ");
            write!(
                page,
                "<li>{} of {} lines can't be parsed: {}</li>",
                thousands(self.lines.unreadable),
                thousands(self.lines.lines),
                Escaped(named)
            )?;
        }
        page.write_str("</ul>")
    }
}

fn write_limit(page: &mut String, limit: &LimitReport) -> fmt::Result {
    let shadows = if limit.shadows { ", shadows" } else { "" };
    write!(
        page,
        "<h2>{} <small>{} {}{shadows}</small></h2><p>{} of {} requests refused ({:.2} %), of {} of {} keys.",
        Escaped(&limit.limit),
        Escaped(&limit.rate),
        limit.algorithm,
        thousands(limit.refused),
        thousands(limit.requests),
        limit.refused_percent,
        thousands(limit.keys_refused as u64),
        thousands(limit.keys as u64)
    )?;
    if let Some(percent) = limit.use_p99_percent {
        write!(page, " 99 % of the keys use at most {percent:.0} % of their quota.")?;
    }
    page.write_str("</p>")?;
    if !limit.judged {
        return page
            .write_str("<p class=\"bad\">The log doesn't contain enough data to judge this limit.</p>");
    }
    if let Some(smallest) = &limit.smallest {
        write_smallest(page, limit, smallest)?;
        write_curve(page, limit, smallest)?;
    }
    write_busiest(page, &limit.busiest)
}

fn write_smallest(page: &mut String, limit: &LimitReport, smallest: &Smallest) -> fmt::Result {
    let Smallest { nobody, one_percent, five_percent, first, above_first, is_exact } = smallest;
    write!(
        page,
        "<h3>Which rate?</h3><p class=\"answer\">Begin with <b>{}</b>: 99 % of the keys never need more than {}. ",
        Escaped(&first.rate),
        Escaped(&one_percent.rate)
    )?;
    match above_first {
        0 => page.write_str("No key needs more.</p>")?,
        keys => write!(
            page,
            "{} of {} keys need more: find them among the busiest keys, and give those that may use more a rate of their \
             own with <code>overrides</code>.</p>",
            thousands(*keys as u64),
            thousands(limit.keys as u64)
        )?,
    }
    let bound = if *is_exact { "" } else { "at most " };
    page.write_str(
        "<table class=\"rates\"><tr><th>Keys with a refused request</th><th>Smallest rate</th></tr>",
    )?;
    for (whom, rate) in [("none", nobody), ("1 % at most", one_percent), ("5 % at most", five_percent)] {
        write!(page, "<tr><td>{whom}</td><td class=\"number\">{bound}{}</td></tr>", Escaped(&rate.rate))?;
    }
    page.write_str("</table>")
}

/// Draws the share of keys with a refused request, by rate.
fn write_curve(page: &mut String, limit: &LimitReport, smallest: &Smallest) -> fmt::Result {
    let most = limit.curve.iter().map(|(rate, _)| *rate).chain([limit.permits]).max().unwrap_or(1).max(2)
        as f64
        * 1.3;
    let least = limit.curve.first().map_or(1, |(rate, _)| (*rate).max(1)).min(limit.permits) as f64 / 1.3;
    let x = |rate: f64| LEFT + (WIDTH - LEFT) * (rate.max(least) / least).ln() / (most / least).ln();
    let y = |percent: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - percent / 100.0);
    let window = limit.rate.split_once('/').map(|(_, window)| format!("permits per {window}"));
    write!(
        page,
        "<h3>Keys with a refused request, by rate <small>{}</small></h3>",
        Escaped(window.as_deref().unwrap_or("requests at a time"))
    )?;
    begin_drawing(page, "share of the keys with a refused request, by rate")?;
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        write_line_of_grid(page, y(percent), format_args!("{percent} %"))?;
    }
    for rate in ticks(least, most) {
        let (x, y) = (x(rate as f64), HEIGHT - 8.0);
        write!(page, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", thousands(rate))?;
    }
    let first = limit.curve.first().map_or(0.0, |(_, percent)| *percent);
    let mut path = format!("M{:.1} {:.1}", x(least), y(first));
    for (rate, percent) in &limit.curve {
        write!(path, "H{:.1}V{:.1}", x(*rate as f64), y(*percent))?;
    }
    write!(path, "H{WIDTH:.1}")?;
    write!(
        page,
        "<path class=\"area\" d=\"{path}V{:.1}H{:.1}Z\"/><path class=\"curve\" d=\"{path}\"/>",
        y(0.0),
        x(least)
    )?;
    let marks = [
        ("now", "now", limit.permits, limit.rate.as_str()),
        ("mark", "95 %", smallest.five_percent.permits, &smallest.five_percent.rate),
        ("mark", "99 %", smallest.one_percent.permits, &smallest.one_percent.rate),
        ("mark", "all", smallest.nobody.permits, &smallest.nobody.rate),
    ];
    for (at, (class, name, permits, rate)) in marks.iter().enumerate() {
        let (x, y_text) = (x(*permits as f64), 28.0 + 24.0 * at as f64);
        let (anchor, gap) = if x > WIDTH * 0.7 { ("end", -5.0) } else { ("start", 5.0) };
        write!(
            page,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>\
             <text class=\"{class}\" x=\"{:.1}\" y=\"{y_text}\" text-anchor=\"{anchor}\">{name}: {}</text>",
            y(0.0),
            x + gap,
            Escaped(rate)
        )?;
    }
    page.write_str("</svg>")
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

fn write_bars(page: &mut String, Bars { start, seconds, bars }: &Bars) -> fmt::Result {
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
        let time = humantime::format_rfc3339_seconds(
            std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds),
        );
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

fn write_busiest(page: &mut String, busiest: &[Busy]) -> fmt::Result {
    if busiest.is_empty() {
        return Ok(());
    }
    page.write_str(
        "<h3>Busiest keys</h3><div class=\"wide\"><table><tr><th>Key</th><th class=\"number\">Requests</th>\
         <th class=\"number\">Refused</th><th class=\"number\">Most in a window</th><th>Of the quota</th></tr>",
    )?;
    let most = busiest.iter().map(|busy| busy.use_percent).fold(100.0, f64::max);
    for Busy { key, requests, refused, peak, use_percent } in busiest {
        let class = if *use_percent > 100.0 { "bad" } else { "good" };
        write!(
            page,
            "<tr><td><code>{}</code></td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td><span class=\"meter {class}\"><span style=\"width:{:.0}%\"></span>\
             </span> {use_percent:.0} %</td></tr>",
            Escaped(key),
            thousands(*requests),
            thousands(*refused),
            thousands(*peak),
            100.0 * use_percent / most
        )?;
    }
    page.write_str("</table></div>")
}

fn write_changed(page: &mut String, what: &str, changed: &Changed) -> fmt::Result {
    write!(
        page,
        "<h3>{what} by {}: {}</h3><div class=\"wide\"><table><tr><th>Key</th><th class=\"number\">Requests</th></tr>",
        Escaped(&changed.limit),
        thousands(changed.requests)
    )?;
    for (key, requests) in &changed.keys {
        let requests = thousands(*requests);
        write!(page, "<tr><td><code>{}</code></td><td class=\"number\">{requests}</td></tr>", Escaped(key))?;
    }
    page.write_str("</table></div>")
}

/// A text that is escaped for any place in the page.
struct Escaped<T>(T);

impl<T: AsRef<str>> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().chars().try_for_each(|character| match character {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            character if character.is_control() => write!(f, "{}", character.escape_default()),
            character => f.write_char(character),
        })
    }
}
