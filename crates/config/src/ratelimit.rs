//! A folder with the configuration of envoyproxy/ratelimit: a YAML file for each domain.

mod environment;
mod fields;
mod limits;
mod read;
mod reported;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::Path,
    sync::Arc,
};

use serde_json::Value;
use tollgate_limiter::OnFailure;

pub(super) use self::environment::NAME as ENVIRONMENT;
pub use self::environment::RatelimitEnvironment;
use self::read::{EntryName, EntryPlaces};

use super::{Diagnostics, LimitSettings, Sources, ValuePattern, document::MAX_FAULTS, error::Diagnostic};

/// The first places of entries that descriptors can begin with, as `file:line`, by domain.
type FirstPlaces = BTreeMap<(String, EntryName), String>;

/// A folder that has been read.
#[derive(Clone, Debug, Default)]
pub struct RatelimitFolder {
    /// The domains, in the order of the files.
    pub domains: Vec<DomainSettings>,
    /// The limits by name.
    pub limits: BTreeMap<String, Arc<LimitSettings>>,
}

/// The limits of a domain.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainSettings {
    /// The name.
    pub name: String,
    /// The entries that descriptors can begin with.
    pub entries: Vec<DescriptorEntry>,
}

/// An entry of a descriptor, with the entries that can follow it.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorEntry {
    /// The key.
    pub key: String,
    /// The values that match. `None` means those that no other entry of the same key matches.
    pub value: Option<ValuePattern>,
    /// True if all values that match a pattern count together.
    pub shares: bool,
    /// The verdict on a descriptor that ends here.
    pub verdict: Option<Arc<Verdict>>,
    /// The entries that can follow.
    pub entries: Vec<DescriptorEntry>,
}

/// The settings of a descriptor, beside the numbers of its limit.
#[derive(Debug, Default, PartialEq)]
pub struct Verdict {
    /// The name of the limit in the configuration. `None` if it is unlimited.
    pub limit: Option<String>,
    /// The name that the file gives it.
    pub name: Option<String>,
    /// Names of the limits that don't count if this one does.
    pub replaces: Vec<String>,
    /// True if the call is rejected only if all limits of this kind reject it.
    pub quota_mode: bool,
    /// Metadata for the caller.
    pub metadata: Option<Value>,
}

impl RatelimitFolder {
    /// Checks a folder.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn check(folder: &Path) -> Result<(), Diagnostics> {
        let read = Self::read(folder, OnFailure::Local, false, &mut Sources::default());
        let name = folder.display().to_string();
        read.map(drop).map_err(|faulty| Diagnostics::new(&name, "", Vec::new()).with(faulty))
    }

    /// Reads a folder. Files whose name begins with a dot are ignored. Limits without a policy of their own for a failed store
    /// have `on_failure`. Several files may have the same domain if `merges`.
    ///
    /// # Errors
    /// What is wrong with each file, or with the folder.
    pub fn read(
        folder: &Path,
        on_failure: OnFailure,
        merges: bool,
        sources: &mut Sources,
    ) -> Result<Self, Vec<Diagnostics>> {
        let shown = folder.display();
        let unreadable = |error: &dyn std::fmt::Display| {
            vec![Diagnostics::of(
                &shown.to_string(),
                &format!(
                    "can't read the folder `{shown}`: {error}\nname a folder with a YAML file for each domain"
                ),
            )]
        };
        let paths = sources.read_folder(folder).map_err(|error| unreadable(&error))?;
        let (mut read, mut first) = (Self::default(), FirstPlaces::new());
        let mut faulty = Vec::new();
        for path in paths {
            let name = path.display().to_string();
            match sources.read(path).map_err(|error| error.to_string()).and_then(utf8) {
                Ok(text) => faulty.extend(read.add(&name, &text, on_failure, merges, &mut first)),
                Err(error) => {
                    let fault = format!("can't read `{name}`: {error}\nwrite YAML in UTF-8");
                    faulty.push(Diagnostics::of(&name, &fault));
                }
            }
        }
        if faulty.iter().any(Diagnostics::has_errors) { Err(faulty) } else { Ok(read) }
    }

    /// Reads files that come from elsewhere, each a name and a text.
    ///
    /// # Errors
    /// What is wrong with each file.
    pub fn of_texts(
        texts: impl IntoIterator<Item = (String, String)>,
        on_failure: OnFailure,
        merges: bool,
    ) -> Result<Self, Diagnostics> {
        let (mut read, mut first) = (Self::default(), FirstPlaces::new());
        let add = |(name, text): (String, String)| read.add(&name, &text, on_failure, merges, &mut first);
        let faulty: Vec<_> = texts.into_iter().filter_map(add).collect();
        if faulty.iter().any(Diagnostics::has_errors) {
            return Err(Diagnostics::default().with(faulty));
        }
        Ok(read)
    }

    /// Adds a file, and returns what is wrong with it, as far as that is worth reading.
    fn add(
        &mut self,
        name: &str,
        text: &str,
        on_failure: OnFailure,
        merges: bool,
        first: &mut FirstPlaces,
    ) -> Option<Diagnostics> {
        let mut reader = read::Reader::new(on_failure, &mut self.limits);
        let domain = reader.domain(text);
        let mut faults = reader.into_faults();
        if let Some((domain, place, places)) = domain {
            if merges {
                faults.extend(repeated(name, text, &domain.name, places, first));
            }
            match self.domains.iter_mut().find(|known| known.name == domain.name) {
                Some(known) if merges => known.entries.extend(domain.entries),
                Some(_) => {
                    let fault = Diagnostic::error("there is already a file for this domain");
                    let help = "put all limits of a domain into one file, or set merge_domains = true";
                    faults.push(fault.at(&place, "again here").help(help));
                }
                None => self.domains.push(domain),
            }
        }
        faults.truncate(MAX_FAULTS);
        (!faults.is_empty()).then(|| Diagnostics::new(name, text, faults))
    }
}

/// Returns a fault for each of a file's entries that an earlier file of the domain has, and notes the places of the others.
fn repeated(
    name: &str,
    text: &str,
    domain: &str,
    places: EntryPlaces,
    first: &mut FirstPlaces,
) -> Vec<Diagnostic> {
    let lines: Vec<_> = text.match_indices('\n').map(|(end, _)| end).collect();
    let mut faults = Vec::new();
    for (entry, place) in places {
        match first.entry((domain.to_owned(), entry)) {
            Entry::Occupied(first) => {
                let fault = read::duplicate(&first.key().1.0);
                let fault = fault.at(&place, format!("again here, first in {}", first.get()));
                faults.push(fault.help("write the two as one descriptor, or give it another value"));
            }
            Entry::Vacant(first) => {
                let line = lines.partition_point(|end| *end < place.start) + 1;
                first.insert(format!("{name}:{line}"));
            }
        }
    }
    faults
}

/// Returns bytes as text.
fn utf8(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|error| error.utf8_error().to_string())
}

#[cfg(test)]
mod tests;
