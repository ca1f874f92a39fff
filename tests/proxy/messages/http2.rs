//! The same for HTTP/2 clients (RFC 9113), frame by frame, and for HTTP/2 upstreams. Malformed requests are reset as the RFC
//! says; the others get the same problems as in HTTP/1.1.

mod answers;
mod cuts;
mod expectations;
mod fields;
mod framing;
mod hosts;
mod sizes;
mod upstreams;

use super::Recording;
use crate::harness::frames::{
    DATA, END_HEADERS, END_STREAM, End, Frames, HEADERS, PROTOCOL_ERROR, Told, fields,
};

type Field<'f> = (&'f str, &'f str);

/// A request of this method, and some more fields.
fn request<'f>(method: &'f str, more: &[Field<'f>]) -> Vec<Field<'f>> {
    let head = [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", "/first")];
    [&head[..], more].concat()
}

/// The same with another value of one of its fields, or without it.
fn replaced<'f>(request: &[Field<'f>], name: &str, value: Option<&'f str>) -> Vec<Field<'f>> {
    let other =
        |field: &Field<'f>| if field.0 == name { value.map(|value| (field.0, value)) } else { Some(*field) };
    request.iter().filter_map(other).collect()
}

/// Sends a request with a body in these pieces. The last one ends it.
fn send(client: &mut Frames, stream: u32, request: &[Field<'_>], pieces: &[&str]) {
    client.send(
        HEADERS,
        END_HEADERS | if pieces.is_empty() { END_STREAM } else { 0 },
        stream,
        &fields(request),
    );
    for (at, piece) in pieces.iter().enumerate() {
        let flags = if at + 1 == pieces.len() { END_STREAM } else { 0 };
        client.send(DATA, flags, stream, piece.as_bytes());
    }
}

impl Recording {
    /// A connection for HTTP/2.
    fn frames(&self) -> Frames {
        Frames::connect(self.gateway.address())
    }

    /// What comes of a request on a connection of its own, with a body in these pieces.
    fn asked(&self, request: &[Field<'_>], pieces: &[&str]) -> Told {
        let mut client = self.frames();
        send(&mut client, 1, request, pieces);
        client.told(1)
    }

    /// Asserts that the gateway answers a request with this problem.
    fn assert_problem(&self, request: &[Field<'_>], pieces: &[&str], status: u16, code: &str) {
        let told = self.asked(request, pieces);
        assert_eq!((told.status, told.end), (status, End::Whole), "{request:?}: {told:?}");
        assert_eq!(told.code(), code, "{request:?}");
    }

    /// Asserts that a request is malformed: it is reset, and gets no response.
    fn assert_malformed(&self, request: &[Field<'_>], pieces: &[&str]) {
        let told = self.asked(request, pieces);
        let is_told = matches!(told.end, End::Reset(PROTOCOL_ERROR) | End::Gone(Some(PROTOCOL_ERROR)));
        assert!(is_told && told.status == 0, "{request:?} {pieces:?}: {told:?}");
    }
}
