//! `/`: the dashboard, a page that shows the gateway's state and uses the rest of the admin port for changes.
//!
//! It consists of three static files and loads nothing else. All data is inserted as text, so names and keys
//! can't inject scripts. The policy in [`super::access::secured`] allows no other scripts.

use std::sync::Arc;

use axum::{Router, http::header::CONTENT_TYPE, response::IntoResponse, routing::get};

use super::Admin;

/// The paths that need no token, since they contain nothing about this gateway.
pub(super) const PATHS: [&str; 3] = ["/", "/dashboard.css", "/dashboard.js"];

pub(super) fn router() -> Router<Arc<Admin>> {
    Router::new()
        .route("/", get(async || file("text/html", include_str!("dashboard/page.html"))))
        .route("/dashboard.css", get(async || file("text/css", include_str!("dashboard/dashboard.css"))))
        .route("/dashboard.js", get(async || file("text/javascript", include_str!("dashboard/dashboard.js"))))
}

fn file(kind: &str, text: &'static str) -> impl IntoResponse + use<> {
    ([(CONTENT_TYPE, format!("{kind}; charset=utf-8"))], text)
}
