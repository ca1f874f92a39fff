//! Tests that judge time: run alone, one at a time.

#[allow(dead_code)] // Each test target uses a part of it.
mod harness;
