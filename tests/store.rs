//! One contract over both stores.

#[allow(dead_code)] // Each test target uses a part of it.
mod harness;
