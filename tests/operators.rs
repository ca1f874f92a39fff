//! Tests for operators: commands, configuration, admin port, dashboard, simulation, documents.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

#[allow(dead_code)] // Each test target uses a part of it.
mod harness;

mod accuracy;
mod admin;
mod check;
mod commands;
mod config;
mod dashboard;
mod documents;
mod explain;
mod operating;
mod schema;
mod secrets;
mod simulate;
mod split;
mod structure;
