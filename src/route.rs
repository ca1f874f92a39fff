//! Routes.

pub mod path;
pub mod pattern;
