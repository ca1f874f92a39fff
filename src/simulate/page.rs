//! The report as a single HTML page without external resources.
//!
//! It shows keys, which are percent-encoded or hashed, and file names from the logs. Everything is escaped.

mod chart;

use std::fmt::{self, Display, Write};

use self::chart::{write_bars, write_curve};
use super::report::{Busy, Changed, LimitReport, Report, Smallest, thousands};

const STYLE: &str = include_str!("page.css");

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
                "<h2>Changes from the file of --against</h2><p>{} requests are newly refused, {} newly admitted.</p>",
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
    for (keys, rate) in [("none", nobody), ("1 % at most", one_percent), ("5 % at most", five_percent)] {
        write!(page, "<tr><td>{keys}</td><td class=\"number\">{bound}{}</td></tr>", Escaped(&rate.rate))?;
    }
    page.write_str("</table>")
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
