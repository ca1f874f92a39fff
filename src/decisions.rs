//! Decisions for other proxies: they keep forwarding requests, and ask here whether limits admit them.

pub mod grpc;
pub mod health;
