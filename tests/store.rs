//! The limiter is exact in both stores: it lacks the known faults of other limiters, which are numbered; it keeps the
//! contract of a store; and it keeps its promises, compared with an oracle and with its twin.

/// Defines a test of each fact for each store.
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
mod calendar;
mod contract;
mod foreign;
mod instances;
mod lua54;
mod opened;
mod oracle;
mod parity;
mod refunds;
mod server;
pub(crate) mod stepped;
