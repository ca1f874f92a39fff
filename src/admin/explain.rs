//! `/api/explain`: shows what the running gateway would do with a request, with the current counts.

use std::sync::Arc;

use axum::{
    Json,
    extract::{RawQuery, State},
    http::StatusCode,
};

use crate::explain::{Explanation, Question};

use super::{Admin, Problem};

pub(super) async fn explain(
    State(admin): State<Arc<Admin>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Explanation>, Problem> {
    let question = Question::from_query(query.as_deref().unwrap_or_default());
    let question =
        question.map_err(|remedy| Problem::new(StatusCode::BAD_REQUEST, remedy.replace('\n', ": ")))?;
    Ok(Json(Explanation::live(&admin.gateway.load_full(), question).await))
}
