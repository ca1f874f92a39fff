//! The PROXY protocol: a TCP proxy states a client's address before the client's bytes.
//!
//! Both versions of <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt> are supported. Only the
//! source address is used. Version 2's TLVs (section 2.2.7) are skipped. The gateway decides which proxies
//! may send a header.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt},
    time::timeout,
};

/// The length of the shortest header: `PROXY UNKNOWN` with its line end. Any version 2 header is longer.
const SHORTEST: usize = 15;
/// The length of the longest line of version 1 (section 2.1), with its line end.
const LONGEST_LINE: usize = 107;
/// The length of the longest accepted header. Version 2 allows 64 KiB, mostly for TLVs; nginx has this limit,
/// too.
const LONGEST: usize = 4096;
/// The signature of version 2 (section 2.2).
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The length of version 2 before the addresses.
const FIXED_PART: usize = 16;

/// Returns the address of the client behind a trusted proxy, or the proxy's own if the header states none.
/// `None` if the header is invalid or late; the connection must then be closed (section 2).
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
        // Health checks of a load balancer end like this.
        Ok(Err(error)) => {
            tracing::debug!(peer = %proxy, "a connection ended before its PROXY header: {error}");
        }
        Err(_) => tracing::debug!(peer = %proxy, "no PROXY header in time"),
    }
    None
}

/// Reads a header, and no byte beyond it.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let mut header = Vec::new();
    loop {
        match parse(&header).map_err(|why| io::Error::new(ErrorKind::InvalidData, why))? {
            Parsed::Header { client } => return Ok(client),
            Parsed::Part { missing } => {
                let read = header.len();
                header.resize(read + missing, 0);
                stream.read_exact(&mut header[read..]).await?;
            }
        }
    }
}

/// The result of parsing the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parsed {
    /// A complete header, with the client's address if it states one.
    Header { client: Option<SocketAddr> },
    /// An incomplete header, and the least number of bytes that are missing.
    Part { missing: usize },
}

/// Parses the received bytes of a header.
///
/// # Errors
/// The bytes can't be the beginning of a header.
fn parse(bytes: &[u8]) -> Result<Parsed, &'static str> {
    if bytes.len() < SHORTEST {
        Ok(Parsed::Part { missing: SHORTEST - bytes.len() })
    } else if bytes.starts_with(SIGNATURE) {
        parse_binary(bytes)
    } else if bytes.starts_with(b"PROXY ") {
        parse_line(bytes)
    } else {
        Err("it doesn't begin with a PROXY header")
    }
}

/// Parses version 1 (section 2.1).
fn parse_line(bytes: &[u8]) -> Result<Parsed, &'static str> {
    const MALFORMED: &str = "its PROXY line is malformed";
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        let missing = if bytes.ends_with(b"\r") { 1 } else { 2 };
        let is_too_long = bytes.len() + missing > LONGEST_LINE;
        return if is_too_long { Err(MALFORMED) } else { Ok(Parsed::Part { missing }) };
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

/// Parses a decimal port without leading zeros.
fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port: &u16| port.to_string() == text)
}

/// Parses version 2 (section 2.2).
fn parse_binary(bytes: &[u8]) -> Result<Parsed, &'static str> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED_PART>() else {
        return Ok(Parsed::Part { missing: FIXED_PART - bytes.len() });
    };
    let [.., version_and_command, family, length_high, length_low] = *fixed;
    if version_and_command >> 4 != 2 {
        return Err("its PROXY header has an unknown version");
    }
    let length = usize::from(u16::from_be_bytes([length_high, length_low]));
    if FIXED_PART + length > LONGEST {
        return Err("its PROXY header is too long");
    }
    if rest.len() < length {
        return Ok(Parsed::Part { missing: length - rest.len() });
    }
    let client = match version_and_command & 0xf {
        // LOCAL: a connection of the proxy itself.
        0 => None,
        1 => address(family, &rest[..length])?,
        _ => return Err("its PROXY header has an unknown command"),
    };
    Ok(Parsed::Header { client })
}

/// Returns the source address of a TCP connection. `None` for other protocols; the proxy's address is then
/// used, as in HAProxy.
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
        _ => Err("its PROXY header has an unknown address family"),
    }
}
