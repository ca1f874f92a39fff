//! `/api/explain`: shows what the running gateway would do with a request, with the current counts.

use std::sync::Arc;

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
};
use serde::Serialize;

use crate::explain::{DescriptorExplanation, DescriptorQuestion, Explanation, Question};

use super::{Admin, Problem};

/// An explanation of what was asked about.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Explained {
    Request(Box<Explanation>),
    Descriptor(DescriptorExplanation),
}

pub(super) async fn explain(
    State(admin): State<Arc<Admin>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Explained>, Problem> {
    let query = query.as_deref().unwrap_or_default();
    let invalid = |remedy: String| Problem::new(StatusCode::BAD_REQUEST, remedy.replace('\n', ": "));
    let gateway = admin.gateway.load_full();
    if let Some(question) = DescriptorQuestion::from_query(query) {
        let question = question.map_err(invalid)?;
        return Ok(Json(Explained::Descriptor(DescriptorExplanation::live(&gateway, &question).await)));
    }
    let question = Question::from_query(query).map_err(invalid)?;
    Ok(Json(Explained::Request(Box::new(Explanation::live(&gateway, question).await))))
}
