//! Rules of envoyproxy/ratelimit: files in YAML, and resources of xDS.

use prost_types::Any;
use tollgate_limiter::OnFailure;

use crate::{
    config::{Diagnostics, RatelimitFolder},
    xds,
};

/// Any text is a file of rules or has errors that can be printed, and so is any resource.
pub fn rules(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let files = [("a.yaml".to_owned(), text.clone()), ("b.yaml".to_owned(), text)];
    for merges in [false, true] {
        assert_printable(&RatelimitFolder::of_texts(files.clone(), OnFailure::Local, merges));
    }
    let resource = Any { type_url: xds::RULES.to_owned(), value: bytes.to_vec() };
    assert_printable(&xds::read_rules(&[resource], OnFailure::Local, false));
}

fn assert_printable(read: &Result<RatelimitFolder, Diagnostics>) {
    match read {
        Ok(rules) => {
            assert!(!rules.domains.is_empty() && rules.limits.values().all(|limit| limit.name.len() < 64));
        }
        Err(faults) => assert!(!faults.coloured().is_empty() && !faults.to_string().is_empty()),
    }
}
