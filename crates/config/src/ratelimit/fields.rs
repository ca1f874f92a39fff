//! The values of a file by their keys, with what is wrong with them.

use std::{collections::BTreeSet, ops::Range};

use serde_json::{Number, Value};

use super::read::{Reader, YamlFields};
use crate::{
    error::{Diagnostic, nearest},
    yaml::{YamlNode, YamlValue},
};

impl Reader<'_> {
    /// Returns the fields of a map, without those that aren't known.
    pub(super) fn fields<'n>(&mut self, node: &'n YamlNode, known: &[&str]) -> Option<YamlFields<'n>> {
        let YamlValue::Map(pairs) = &node.value else {
            let keys = known.join("`, `");
            self.error("this must be a map", &node.span, format!("the keys here are `{keys}`"));
            return None;
        };
        let mut fields = YamlFields::new();
        let mut seen = BTreeSet::new();
        for (key, value) in pairs {
            let name = key.text().unwrap_or_default();
            if !known.contains(&name) {
                let meant =
                    nearest(name, known.iter().copied()).map(|meant| format!("did you mean `{meant}`?"));
                let fault = Diagnostic::error(format!("unknown key `{name}`"))
                    .at(&key.span, meant.unwrap_or_default());
                self.faults.push(fault.help(format!("the keys here are `{}`", known.join("`, `"))));
            } else if !seen.insert(name) {
                self.error(format!("`{name}` is given twice"), &key.span, "remove one of the two");
            } else {
                fields.insert(name, value);
            }
        }
        Some(fields)
    }

    /// Returns a field that is a text, or reports that it isn't.
    pub(super) fn text(&mut self, fields: &YamlFields<'_>, name: &str) -> Option<String> {
        let node = fields.get(name).filter(|node| !node.is_null())?;
        let text = node.text().map(str::to_owned);
        if text.is_none() {
            self.error(
                format!("`{name}` must be a text"),
                &node.span,
                format!("write for example: {name}: shop"),
            );
        }
        text
    }

    /// Returns a field that is true or false, or reports that it isn't.
    pub(super) fn flag(&mut self, fields: &YamlFields<'_>, name: &str) -> bool {
        let Some(node) = fields.get(name).filter(|node| !node.is_null()) else { return false };
        match node.text().unwrap_or_default().to_lowercase().as_str() {
            "true" | "yes" | "on" => true,
            "false" | "no" | "off" => false,
            _ => {
                self.error(
                    format!("`{name}` must be true or false"),
                    &node.span,
                    format!("write {name}: true"),
                );
                false
            }
        }
    }

    pub(super) fn error(
        &mut self,
        message: impl Into<String>,
        place: &Range<usize>,
        help: impl Into<String>,
    ) {
        self.faults.push(Diagnostic::error(message).at(place, "").help(help));
    }
}

/// Returns a value as JSON. Plain scalars may be numbers, booleans or null.
pub(super) fn json(node: &YamlNode) -> Value {
    match &node.value {
        YamlValue::Map(pairs) => {
            let pair = |(key, value): &(YamlNode, YamlNode)| {
                (key.text().unwrap_or_default().to_owned(), json(value))
            };
            Value::Object(pairs.iter().map(pair).collect())
        }
        YamlValue::List(items) => items.iter().map(json).collect(),
        YamlValue::Scalar { .. } if node.is_null() => Value::Null,
        YamlValue::Scalar { text, is_plain } => match text.as_str() {
            "true" if *is_plain => true.into(),
            "false" if *is_plain => false.into(),
            text => {
                let number = text.parse::<Number>().ok().filter(|_| *is_plain);
                number.map_or_else(|| text.into(), Value::Number)
            }
        },
    }
}
