//! The parameters of a query on which routes have conditions.

use std::collections::HashSet;

use smallvec::SmallVec;

use crate::path::TooManyReadings;

/// The most parameters of a query that servers may take for one on which a route has a condition. It bounds what a request costs, since each
/// is compared with the conditions of all routes that its path may take.
const CONDITIONAL_MOST: usize = 64;

/// The parameters of a query that servers may take for one on which a route has a condition, with their values, form-decoded.
#[derive(Debug, Default)]
pub struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Reads the parameters with these names.
    ///
    /// # Errors
    /// There are more than [`CONDITIONAL_MOST`].
    pub(crate) fn read(query: &str, names: &ConditionalNames) -> Result<Self, TooManyReadings> {
        let mut found = Vec::new();
        // A name takes at least as many bytes as what is read in it.
        let may_be_named = |text: &&str| text.len() >= names.shortest;
        for text in query.split('&').filter(may_be_named) {
            let Some((name, value)) = form_urlencoded::parse(text.as_bytes()).next() else { continue };
            if !names.may_be(&name) {
                continue;
            }
            if found.len() == CONDITIONAL_MOST {
                return Err(TooManyReadings);
            }
            found.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(found))
    }

    /// Returns the values of the parameters that servers read by this name, or with `is_exact` of those that have it, in the order in which they
    /// were sent.
    pub(crate) fn values<'p>(&'p self, name: &'p str, is_exact: bool) -> impl Iterator<Item = &'p str> {
        let is_named = move |sent: &str| if is_exact { sent == name } else { is_read_as(sent, name) };
        self.0.iter().filter(move |(sent, _)| is_named(sent)).map(|(_, value)| &**value)
    }

    /// Returns true if servers read one of these names in several parameters.
    pub(crate) fn has_repeated(&self, names: &ConditionalNames) -> bool {
        self.0.len() > 1 && names.all.iter().any(|name| self.values(name, false).nth(1).is_some())
    }

    /// Returns true if only some servers read one of these names in a parameter.
    pub(crate) fn has_respelt(&self, names: &ConditionalNames) -> bool {
        let is_respelt = |sent: &str| names.all.iter().any(|name| sent != name && is_read_as(sent, name));
        self.0.iter().any(|(sent, _)| is_respelt(sent))
    }
}

/// The names of the parameters on which routes have conditions.
#[derive(Debug)]
pub(crate) struct ConditionalNames {
    all: HashSet<String>,
    /// The names with `_` for all that PHP has it for.
    plain: HashSet<Name>,
    /// The bytes of the shortest one.
    shortest: usize,
}

type Name = SmallVec<[u8; 64]>;

impl ConditionalNames {
    pub(crate) fn new(all: impl IntoIterator<Item = String>) -> Self {
        let all = HashSet::from_iter(all);
        let plain = all.iter().map(|name: &String| plain(name)).collect();
        let shortest = all.iter().map(String::len).min().unwrap_or(usize::MAX);
        Self { all, plain, shortest }
    }

    /// Returns true if servers may read one of these names in a parameter.
    fn may_be(&self, sent: &str) -> bool {
        self.plain.contains(&plain(without_ends(sent)))
    }
}

/// Returns true if servers read a parameter's name as this one. PHP drops leading spaces, ends it at a NUL, and has `_` for dots, spaces
/// and `[`.
fn is_read_as(sent: &str, name: &str) -> bool {
    let sent = without_ends(sent);
    let is_same = |(sent, name): (u8, u8)| sent == name || name == b'_' && is_underscore(sent);
    sent.len() == name.len() && sent.bytes().zip(name.bytes()).all(is_same)
}

fn without_ends(sent: &str) -> &str {
    sent.trim_start_matches(' ').split('\0').next().unwrap_or_default()
}

fn plain(name: &str) -> Name {
    name.bytes().map(|byte| if is_underscore(byte) { b'_' } else { byte }).collect()
}

fn is_underscore(byte: u8) -> bool {
    matches!(byte, b'.' | b' ' | b'[')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_has_the_names_that_servers_read() {
        for (sent, is_it) in [
            ("api_key", true),
            (" api_key", true),
            ("api.key", true),
            ("api key\0x", true),
            ("api[key", true),
            ("api_keys", false),
            ("api-key", false),
            ("Api_key", false),
            ("", false),
        ] {
            assert_eq!(is_read_as(sent, "api_key"), is_it, "{sent:?}");
        }
        assert!(!is_read_as("a.b", "a-b") && !is_read_as("a_b", "a.b") && is_read_as("a.b", "a.b"));
    }

    #[test]
    fn only_parameters_on_which_routes_have_conditions_are_kept() {
        let names = ConditionalNames::new(["action", "dry_run", "a.b"].map(str::to_owned));
        let read = |query: &str| Parameters::read(query, &names);
        let query = "&=&x=1&action=a+%41&Action=b&+act%69on=c&dry.run&a.b=d&a_b=e&dry%5Brun%00x=f&actions=g";
        let sent = [
            ("action", "a A"),
            (" action", "c"),
            ("dry.run", ""),
            ("a.b", "d"),
            ("a_b", "e"),
            ("dry[run\0x", "f"),
        ];
        let sent = sent.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let parameters = read(query).unwrap();
        assert_eq!(parameters.0, sent);
        let values = |name, is_exact| parameters.values(name, is_exact).collect::<Vec<_>>();
        assert_eq!((values("action", false), values("action", true)), (vec!["a A", "c"], vec!["a A"]));
        assert_eq!((values("dry_run", false), values("dry_run", true)), (vec!["", "f"], vec![]));
        assert_eq!((values("a.b", false), values("a.b", true)), (vec!["d"], vec!["d"]));
        let of = |query| {
            let parameters = read(query).unwrap();
            (parameters.has_repeated(&names), parameters.has_respelt(&names))
        };
        for (query, repeated_and_respelt) in [
            ("", (false, false)),
            ("action=1&dry_run=1&x=1&x=2", (false, false)),
            ("action=1&action=1", (true, false)),
            ("dry_run=1&dry.run=1", (true, true)),
            ("+action", (false, true)),
        ] {
            assert_eq!(of(query), repeated_and_respelt, "{query}");
        }
    }

    #[test]
    fn parameters_on_which_routes_have_conditions_are_bounded() {
        let names = ConditionalNames::new(["action".to_owned()]);
        let read = |name: &str, count: usize| Parameters::read(&format!("{name}=1&").repeat(count), &names);
        assert!(read("action", CONDITIONAL_MOST).is_ok_and(|all| all.0.len() == CONDITIONAL_MOST));
        assert!(read("%61ction", CONDITIONAL_MOST + 1).is_err());
        assert!(read("bction", 100_000).is_ok_and(|all| all.0.is_empty()));
        assert!(Parameters::read("=&a", &ConditionalNames::new([])).is_ok_and(|all| all.0.is_empty()));
    }
}
