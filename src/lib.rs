//! Tollgate: an HTTP gateway with exact distributed rate limits.

pub mod algorithm;
pub mod config;
pub mod duration;
pub mod route;
