//! HTTP/1.1 on the wire (RFC 9112), for clients and servers: bytes received ([`Input`]), the heads of
//! messages ([`head`]), the length and framing of bodies ([`body`]), bytes to send ([`Output`]), and a
//! client's connection with the body of its request ([`Wire`]).
//!
//! httparse parses the heads. Nothing here waits or decides; that is up to servers and clients.

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

/// A byte stream to run HTTP on.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}
