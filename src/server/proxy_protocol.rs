//! The PROXY protocol: a proxy that passes connections on without reading them says first whose they are.
//!
//! Both versions, as <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt> has them. Of the header only the
//! source's address counts: what else a proxy may tell of the connection (version 2's TLVs, section 2.2.7) is
//! skipped. Who may send one at all is for the gateway to say.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::timeout,
};

/// The shortest header, in bytes: `PROXY UNKNOWN` and its end of line. Another byte is part of any version 2.
const SHORTEST: usize = 15;
/// The longest line of version 1 (section 2.1), in bytes with its end.
const LONGEST_LINE: usize = 107;
/// The longest header, in bytes. Version 2 may say up to 64 KiB, most of them TLVs; nginx takes as much as this.
const LONGEST: usize = 4096;
/// What version 2 begins with (section 2.2).
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 before the address.
const FIXED_PART: usize = 16;

/// Whose connection it is that a trusted proxy passes on: its own, if it names nobody. `None` if it doesn't say
/// so properly and in time: the connection is to be closed (section 2).
pub(super) async fn client(
    stream: &mut (impl AsyncRead + Unpin),
    proxy: SocketAddr,
    within: Duration,
) -> Option<SocketAddr> {
    match timeout(within, read(stream)).await {
        Ok(Ok(client)) => return Some(client.unwrap_or(proxy)),
        Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => {
            tracing::warn!(peer = %proxy, "a trusted proxy's connection is closed: {error}");
        }
        // So ends a check whether somebody listens here.
        Ok(Err(error)) => {
            tracing::debug!(peer = %proxy, "a connection ended before its PROXY header: {error}");
        }
        Err(_) => tracing::debug!(peer = %proxy, "no PROXY header came in time"),
    }
    None
}

/// Reads a header and nothing of what comes after it.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let mut header = Vec::new();
    loop {
        match parse(&header).map_err(|why| io::Error::new(ErrorKind::InvalidData, why))? {
            Parsed::Header { client } => return Ok(client),
            Parsed::Part { lacks } => {
                let read = header.len();
                header.resize(read + lacks, 0);
                stream.read_exact(&mut header[read..]).await?;
            }
        }
    }
}

/// What the first bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parsed {
    /// A whole header, and whom it names, if anybody.
    Header { client: Option<SocketAddr> },
    /// A part of one, which has so many more bytes at the least.
    Part { lacks: usize },
}

/// Reads the bytes of a header that are there so far.
///
/// # Errors
/// Why they aren't the beginning of one.
fn parse(bytes: &[u8]) -> Result<Parsed, &'static str> {
    if bytes.len() < SHORTEST {
        Ok(Parsed::Part { lacks: SHORTEST - bytes.len() })
    } else if bytes.starts_with(SIGNATURE) {
        parse_binary(bytes)
    } else if bytes.starts_with(b"PROXY ") {
        parse_line(bytes)
    } else {
        Err("it doesn't begin with a PROXY header")
    }
}

/// Version 1 (section 2.1).
fn parse_line(bytes: &[u8]) -> Result<Parsed, &'static str> {
    const MALFORMED: &str = "its PROXY line is malformed";
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        let lacks = if bytes.ends_with(b"\r") { 1 } else { 2 };
        let is_too_long = bytes.len() + lacks > LONGEST_LINE;
        return if is_too_long { Err(MALFORMED) } else { Ok(Parsed::Part { lacks }) };
    };
    let line = str::from_utf8(&bytes[..end]).ok().filter(|_| end + 2 == bytes.len()).ok_or(MALFORMED)?;
    let mut words = line.split(' ').skip(1);
    let family = words.next().unwrap_or_default();
    if family == "UNKNOWN" {
        return Ok(Parsed::Header { client: None });
    }
    let words: [&str; 4] = words.collect::<Vec<_>>().try_into().map_err(|_| MALFORMED)?;
    let [source, destination, source_port, destination_port] = words;
    let address = |text: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => text.parse().ok().map(Ipv4Addr::into),
            "TCP6" => text.parse().ok().map(Ipv6Addr::into),
            _ => None,
        }
    };
    let ends = address(source).zip(port(source_port));
    let is_whole = address(destination).and(port(destination_port)).is_some();
    let client = ends.filter(|_| is_whole).ok_or(MALFORMED)?;
    Ok(Parsed::Header { client: Some(client.into()) })
}

/// A port in decimal, without leading zeros.
fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port: &u16| port.to_string() == text)
}

/// Version 2 (section 2.2).
fn parse_binary(bytes: &[u8]) -> Result<Parsed, &'static str> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED_PART>() else {
        return Ok(Parsed::Part { lacks: FIXED_PART - bytes.len() });
    };
    let [.., version_and_command, family, length_high, length_low] = *fixed;
    if version_and_command >> 4 != 2 {
        return Err("its PROXY header is of an unknown version");
    }
    let length = usize::from(u16::from_be_bytes([length_high, length_low]));
    if FIXED_PART + length > LONGEST {
        return Err("its PROXY header is too long");
    }
    if rest.len() < length {
        return Ok(Parsed::Part { lacks: length - rest.len() });
    }
    let client = match version_and_command & 0xf {
        // LOCAL: the proxy speaks for itself.
        0 => None,
        1 => address(family, &rest[..length])?,
        _ => return Err("its PROXY header has an unknown command"),
    };
    Ok(Parsed::Header { client })
}

/// The source of a connection over TCP; of others the proxy itself stands for it, as HAProxy has it.
fn address(family: u8, block: &[u8]) -> Result<Option<SocketAddr>, &'static str> {
    const TOO_SHORT: &str = "its PROXY header is too short for its addresses";
    // Source, destination, and their ports.
    match family {
        0x11 => {
            let [a, b, c, d, _, _, _, _, port @ .., _, _] = *block.first_chunk::<12>().ok_or(TOO_SHORT)?;
            Ok(Some((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes(port)).into()))
        }
        0x21 => {
            let (source, rest) = block.split_first_chunk::<16>().ok_or(TOO_SHORT)?;
            let (_destination, ports) = rest.split_first_chunk::<16>().ok_or(TOO_SHORT)?;
            let [port @ .., _, _] = *ports.first_chunk::<4>().ok_or(TOO_SHORT)?;
            Ok(Some((Ipv6Addr::from(*source), u16::from_be_bytes(port)).into()))
        }
        // Unspecified, UDP, and unix sockets.
        0x00 | 0x12 | 0x22 | 0x31 | 0x32 => Ok(None),
        _ => Err("its PROXY header names an unknown family of addresses"),
    }
}
