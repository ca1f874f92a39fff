//! The backlog of a listener, read with sock_diag(7) as `ss` does: /proc/net/tcp doesn't show its bound.

use std::fs;

use socket2::{Domain, Protocol, Socket, Type};

const AF_NETLINK: i32 = 16;
const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST and NLM_F_DUMP.
const ALL: u16 = 0x301;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;
const LISTENING: u32 = 1 << 10;
/// Bytes of `nlmsghdr`, and of `inet_diag_sockid`, which begins 4 bytes later in a question and an answer.
const HEAD: usize = 16;
const IDENTITY: usize = 48;

/// Returns the backlog of the IPv4 listener on this port (`Send-Q` of `ss -ltn`).
pub(crate) fn backlog(port: u16) -> u32 {
    let socket =
        Socket::new(Domain::from(AF_NETLINK), Type::DGRAM, Some(Protocol::from(NETLINK_SOCK_DIAG))).unwrap();
    let mut question = Vec::new();
    question.extend(((HEAD + 8 + IDENTITY) as u32).to_ne_bytes());
    question.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    question.extend(ALL.to_ne_bytes());
    question.extend([0; 8]);
    question.extend([AF_INET, IPPROTO_TCP, 0, 0]);
    question.extend(LISTENING.to_ne_bytes());
    question.extend([0; IDENTITY]);
    assert_eq!(socket.send(&question).unwrap(), question.len());
    let mut answers = vec![0; 1 << 16];
    loop {
        let length = std::io::Read::read(&mut &socket, &mut answers).unwrap();
        let mut rest = &answers[..length];
        while rest.len() >= HEAD {
            let number = |at: usize| u32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
            let (length, kind) = (number(0) as usize, u16::from_ne_bytes([rest[4], rest[5]]));
            assert_eq!(kind, SOCK_DIAG_BY_FAMILY, "nothing listens on port {port}");
            if u16::from_be_bytes([rest[HEAD + 4], rest[HEAD + 5]]) == port {
                // After the identity come when it expires, and what waits.
                return number(HEAD + 4 + IDENTITY + 8);
            }
            rest = &rest[length.next_multiple_of(4)..];
        }
    }
}

/// Returns the greatest backlog that the system allows.
pub(crate) fn greatest() -> u32 {
    fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap()
}
