//! The parameters of a query on which routes have conditions.

use std::collections::{BTreeSet, HashMap};

use smallvec::SmallVec;

use crate::path::TooManyReadings;

/// The most parameters of a query that servers may take for one on which a route has a condition. It bounds what a request costs, since each
/// is compared with the conditions of all routes that its path may take.
const CONDITIONAL_MOST: usize = 64;

/// The values of the parameters of a query that servers may take for one on which a route has a condition, form-decoded and in order, by
/// the name in the condition.
#[derive(Debug, Default)]
pub struct Parameters(HashMap<String, Vec<Value>>);

#[derive(Debug)]
struct Value {
    text: String,
    /// True if the parameter has the name itself, and not only one that some servers take for it.
    is_exact: bool,
}

impl Parameters {
    /// Reads the parameters with these names.
    ///
    /// # Errors
    /// There are more than [`CONDITIONAL_MOST`].
    pub(crate) fn read(query: &str, names: &ConditionalNames) -> Result<Self, TooManyReadings> {
        let mut values: HashMap<String, Vec<Value>> = HashMap::new();
        if names.by_reading.is_empty() {
            return Ok(Self(values));
        }
        // Decoding never makes a text longer.
        let may_be_named = |text: &&str| text.len() >= names.shortest;
        let mut count = 0;
        for text in query.split('&').filter(may_be_named) {
            let Some((sent, value)) = form_urlencoded::parse(text.as_bytes()).next() else { continue };
            let mut read = names.read_in(&sent).peekable();
            if read.peek().is_none() {
                continue;
            }
            count += 1;
            if count > CONDITIONAL_MOST {
                return Err(TooManyReadings);
            }
            for name in read {
                let value = Value { text: value.clone().into_owned(), is_exact: *sent == **name };
                values.entry(name.clone()).or_default().push(value);
            }
        }
        Ok(Self(values))
    }

    /// Returns the values of the parameters that servers read by this name, or with `is_exact` of those that have it, in the order in which they
    /// were sent.
    pub(crate) fn values(&self, name: &str, is_exact: bool) -> impl Iterator<Item = &str> {
        let all = self.0.get(name).into_iter().flatten();
        all.filter(move |value| value.is_exact || !is_exact).map(|value| &*value.text)
    }

    /// Returns true if servers read one of the names in several parameters.
    pub(crate) fn has_repeated(&self) -> bool {
        self.0.values().any(|values| values.len() > 1)
    }

    /// Returns true if only some servers read one of the names in a parameter.
    pub fn has_respelt(&self) -> bool {
        self.0.values().flatten().any(|value| !value.is_exact)
    }
}

/// The names of the parameters on which routes have conditions.
#[derive(Debug)]
pub(crate) struct ConditionalNames {
    /// The names that are alike with `_` in place of dots, spaces and `[`, by that text.
    by_reading: HashMap<PlainName, BTreeSet<String>>,
    /// The length of the shortest name in bytes.
    shortest: usize,
}

/// A name with `_` in place of dots, spaces and `[`.
type PlainName = SmallVec<[u8; 64]>;

impl ConditionalNames {
    pub(crate) fn new(all: impl IntoIterator<Item = String>) -> Self {
        let mut by_reading: HashMap<PlainName, BTreeSet<String>> = HashMap::new();
        let mut shortest = usize::MAX;
        for name in all {
            shortest = shortest.min(name.len());
            by_reading.entry(plain(&name)).or_default().insert(name);
        }
        Self { by_reading, shortest }
    }

    /// Returns the names that servers may read in a parameter's.
    fn read_in<'n>(&'n self, sent: &'n str) -> impl Iterator<Item = &'n String> {
        let alike = self.by_reading.get(&plain(without_ends(sent)));
        alike.into_iter().flatten().filter(move |name| is_read_as(sent, name))
    }
}

/// Returns true if servers read a parameter's name as this one. PHP drops leading spaces, ends it at a NUL, and has `_` for dots, spaces
/// and `[`.
fn is_read_as(sent: &str, name: &str) -> bool {
    let sent = without_ends(sent);
    let is_same = |(sent, name): (u8, u8)| sent == name || name == b'_' && is_underscore(sent);
    sent.len() == name.len() && sent.bytes().zip(name.bytes()).all(is_same)
}

/// Returns a name as PHP reads its ends.
fn without_ends(sent: &str) -> &str {
    sent.trim_start_matches(' ').split('\0').next().unwrap_or_default()
}

fn plain(name: &str) -> PlainName {
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
        let parameters = read(query).unwrap();
        let values = |name, is_exact| parameters.values(name, is_exact).collect::<Vec<_>>();
        assert_eq!((values("action", false), values("action", true)), (vec!["a A", "c"], vec!["a A"]));
        assert_eq!((values("dry_run", false), values("dry_run", true)), (vec!["", "f"], vec![]));
        assert_eq!((values("a.b", false), values("a.b", true)), (vec!["d"], vec!["d"]));
        assert_eq!((values("x", false), parameters.0.len()), (vec![], 3));
        let of = |query| {
            let parameters = read(query).unwrap();
            (parameters.has_repeated(), parameters.has_respelt())
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
        let most = read("action", CONDITIONAL_MOST).unwrap();
        assert_eq!(most.values("action", true).count(), CONDITIONAL_MOST);
        assert!(read("%61ction", CONDITIONAL_MOST + 1).is_err());
        assert!(read("bction", 100_000).is_ok_and(|all| all.0.is_empty()));
        assert!(Parameters::read("=&a", &ConditionalNames::new([])).is_ok_and(|all| all.0.is_empty()));
    }
}
