//! Forwards interim responses (RFC 9110, section 15.2), such as 103 Early Hints, from an upstream to the
//! client.
//!
//! Only HTTP/1.1 clients get them: HTTP/1.0 has no interim responses, and hyper's server can't send them in
//! HTTP/2. A 100 of the upstream isn't forwarded, since the gateway answers `Expect` itself; nor is 101, which would end HTTP
//! towards the client, and which HTTP/2 doesn't have (RFC 9113, section 8.6).

use std::sync::Arc;

use hyper::{Response, StatusCode, header::CONTENT_LENGTH};
use tollgate_http1::{
    Interim,
    head::{self, ReasonPhrase, Spelt},
};

use crate::config::Edits;

use super::headers;

/// The most interim responses that an upstream may send to a request. After more, its connection is closed.
pub const HINTS_MOST: usize = 100;
/// A size in bytes that is enough for most heads.
const HEAD_BYTES: usize = 256;

/// Forwards interim responses to the client of a request.
#[derive(Clone, Debug)]
pub struct Hints {
    client: Interim,
    /// The response edits of the request's route.
    edits: Option<Arc<Edits>>,
}

impl Hints {
    /// Forwards interim responses without edits.
    pub fn new(client: Interim) -> Self {
        Self { client, edits: None }
    }

    /// Applies the route's response edits to interim responses.
    pub fn edit(&mut self, edits: &Arc<Edits>) {
        self.edits = Some(edits.clone());
    }

    /// Forwards an interim response, without hop-by-hop fields and Content-Length.
    pub fn forward(&self, hint: Response<Spelt>) {
        let (mut parts, spelling) = hint.into_parts();
        if matches!(parts.status, StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS) {
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
