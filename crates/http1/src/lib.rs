//! HTTP/1.1 as it stands on the wire (RFC 9112), of clients and servers alike: what comes ([`Input`]), the heads of messages
//! ([`head`]), how long their bodies are and how these are framed ([`body`]), what is to be written ([`Output`]), and a client's
//! connection with the body that comes on it ([`Wire`]).
//!
//! Heads are parsed by httparse. Nothing here waits or decides: servers and clients do.

pub mod body;
pub mod head;
mod input;
mod output;
mod wire;

#[cfg(test)]
mod tests;

pub use self::{
    input::{Ahead, Input},
    output::Output,
    wire::{Incoming, Interim, Wire},
};

use tokio::io::{AsyncRead, AsyncWrite};

/// What a connection is made on.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}
