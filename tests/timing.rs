//! Tests that judge time: run alone, one at a time.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[allow(dead_code)] // Each test target uses a part of it.
mod harness;

mod timing {
    mod outage;
}
