//! `/`: the page that shows what goes on, and lets operators change it by the rest of the admin port.
//!
//! It is three files as they are, and needs nothing from elsewhere. What it shows is put there as text, so that no name or
//! key can be a script; and the policy in [`super::access::secured`] lets no other script run.

use std::sync::Arc;

use axum::{Router, http::header::CONTENT_TYPE, response::IntoResponse, routing::get};

use super::Admin;

/// What is shown to anybody: there is nothing of this gateway in it.
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
