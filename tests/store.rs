//! The limiter is exact, in both stores: the faults of other limiters that it must not have, by number;
//! the contract of a store; and the promises that it makes, against an oracle and its own twin.

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

mod algorithms;
mod contract;
mod foreign;
mod opened;
mod oracle;
mod parity;
mod server;
mod stepped;
