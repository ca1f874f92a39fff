//! Interim responses (RFC 9110, section 15.2), such as 103 Early Hints, on their way from an upstream to a client.
//!
//! They go to clients of HTTP/1.1 only: HTTP/1.0 has none, and hyper's server can't send any in HTTP/2. An upstream's 100
//! stays behind, since the gateway answers `Expect` itself.

use std::sync::Arc;

use hyper::{Response, StatusCode, header::CONTENT_LENGTH};
use tollgate_http1::{
    Interim,
    head::{self, ReasonPhrase, Spelt},
};

use crate::config::Edits;

use super::headers;

/// Interim responses that an upstream may send to a request before its connection is closed.
pub const HINTS_MOST: usize = 100;
/// Bytes of a head that are mostly enough.
const HEAD_BYTES: usize = 256;

/// Sends interim responses on to the client of a request.
#[derive(Debug)]
pub struct Hints {
    client: Interim,
    /// What the request's route changes in its answers.
    edits: Option<Arc<Edits>>,
}

impl Hints {
    /// Hints that go on as they come.
    pub fn to(client: Interim) -> Self {
        Self { client, edits: None }
    }

    /// Edits them as the route edits its answers.
    pub fn edit(&mut self, edits: &Arc<Edits>) {
        self.edits = Some(edits.clone());
    }

    /// Sends one on, without what belongs to a connection or tells of a body.
    pub fn pass(&self, hint: Response<Spelt>) {
        let (mut parts, spelling) = hint.into_parts();
        if parts.status == StatusCode::CONTINUE {
            return;
        }
        headers::towards_client(&mut parts.headers);
        parts.headers.remove(CONTENT_LENGTH);
        if let Some(edits) = &self.edits {
            edits.apply(&mut parts.headers);
        }
        let mut line = Vec::with_capacity(HEAD_BYTES);
        line.extend_from_slice(b"HTTP/1.1 ");
        line.extend_from_slice(parts.status.as_str().as_bytes());
        line.push(b' ');
        line.extend_from_slice(match parts.extensions.get::<ReasonPhrase>() {
            Some(reason) => reason.as_bytes(),
            None => parts.status.canonical_reason().unwrap_or_default().as_bytes(),
        });
        line.extend_from_slice(b"\r\n");
        head::write(&parts.headers, spelling.as_deref(), &mut line);
        line.extend_from_slice(b"\r\n");
        self.client.send(&line);
    }
}
