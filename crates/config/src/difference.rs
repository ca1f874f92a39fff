//! The values of changed keys, old and new, as operators may see them.

use serde_json::Value;

/// The most characters of a value that are shown.
const CHARACTERS_MOST: usize = 120;

/// Two configurations as operators may see them, to show what has changed between them.
#[derive(Clone, Copy)]
pub(super) struct Difference<'s> {
    pub(super) old: &'s Value,
    pub(super) new: &'s Value,
}

impl Difference<'_> {
    /// Returns the values of a key: ` "keep" → "reject"`. Empty if they look the same, as secrets do.
    pub(super) fn at(self, path: &[&str]) -> String {
        self.between(value(self.old, path), value(self.new, path))
    }

    /// Returns the values of a key outside of upstreams, limits and routes, with dots between its parts.
    pub(super) fn at_key(self, key: &str) -> String {
        self.at(&key.split('.').collect::<Vec<_>>())
    }

    /// Returns the values of a key of routes, by their places in the files.
    pub(super) fn of_route(self, [old, new]: [usize; 2], key: &str) -> String {
        let route = |shown: &'_ Value, place: usize| shown["routes"][place].get(key).cloned();
        let (old, new) = (route(self.old, old), route(self.new, new));
        self.between(old.as_ref(), new.as_ref())
    }

    fn between(self, old: Option<&Value>, new: Option<&Value>) -> String {
        if old == new || self.old.is_null() || self.new.is_null() {
            return String::new();
        }
        format!(" {} → {}", text(old), text(new))
    }
}

fn value<'v>(shown: &'v Value, path: &[&str]) -> Option<&'v Value> {
    path.iter().try_fold(shown, |value, key| value.get(key))
}

fn text(value: Option<&Value>) -> String {
    let Some(value) = value else { return "default".to_owned() };
    let text = value.to_string();
    match text.char_indices().nth(CHARACTERS_MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
