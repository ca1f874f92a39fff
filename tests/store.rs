//! The limiter is exact, in both stores: the faults of other limiters that it must not have, by number;
//! the contract of a store; and the promises that it makes, against an oracle and its own twin.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[allow(dead_code)] // Each test target uses a part of it.
mod harness;

/// Makes a test of each fact for each store.
macro_rules! on_both_stores {
    ($($fact:ident)*) => {
        mod memory {
            $(#[test] fn $fact() { super::$fact(&mut super::Stepped::memory()); })*
        }
        mod redis {
            $(#[test] fn $fact() { super::$fact(&mut super::Stepped::redis()); })*
        }
    };
}

#[path = "store/algorithms.rs"]
mod algorithms;
#[path = "store/contract.rs"]
mod contract;
#[path = "store/foreign.rs"]
mod foreign;
#[path = "store/opened.rs"]
mod opened;
#[path = "store/oracle.rs"]
mod oracle;
#[path = "store/parity.rs"]
mod parity;
#[path = "store/server.rs"]
mod server;
#[path = "store/stepped.rs"]
mod stepped;
