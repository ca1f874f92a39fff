//! Tests of the limiter as a library, and of the tower layer.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[allow(dead_code)] // Each test target uses a part of it.
mod harness;

mod examples;
mod layer;
mod limiter;
mod outside;
