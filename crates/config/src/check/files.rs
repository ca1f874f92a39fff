//! Reads the files that values name, and finds the content of files where their names belong.

use std::{ops::Range, path::Path};

use super::Check;
use crate::{Sources, error::Diagnostic, password::is_content};

impl Check<'_, '_> {
    /// Reads the file that a value names. Reports it and returns `None` if that fails.
    pub(super) fn read_file<T>(
        &mut self,
        name: &str,
        place: &Range<usize>,
        read: impl FnOnce(&mut Sources, &Path, &str) -> Result<T, String>,
    ) -> Option<T> {
        if !self.is_file_name(name, place) {
            return None;
        }
        let read = read(self.sources, self.folder, name);
        read.map_err(|fault| self.fault(Diagnostic::with_remedy(&fault).at(place, ""))).ok()
    }

    /// Returns true if a value can be the name of a file. Reports it if it is the content, which isn't shown.
    fn is_file_name(&mut self, value: &str, place: &Range<usize>) -> bool {
        let is_name = !is_content(value) && !value.trim_start().starts_with('{');
        if !is_name {
            let key = self.document.key_at(place).unwrap_or_default();
            let written = self.document.written(place);
            let file = written.strip_prefix("${file:").and_then(|rest| rest.strip_suffix('}'));
            let help = match (file, key.as_str()) {
                (Some(file), _) => format!("write the file's name: {key} = \"{file}\""),
                (None, "key") => "put it into a file, and write its name: key = \"gateway.key\"".to_owned(),
                (None, _) => format!("put it into a file, and write its name: {key} = \"FILE\""),
            };
            let what = if key == "key" { "the key" } else { "the content" };
            let fault = format!("`{key}` is the name of a file, but this is {what} itself");
            self.fault(Diagnostic::error(fault).at(place, "").help(help));
        }
        is_name
    }
}
