//! Rate limits in an axum service, without the gateway.
//!
//! Each address has 20 requests per 10 seconds. Each API key has 60 permits per minute, of which a report
//! costs 10. At most two downloads run at a time.
//!
//! ```text
//! cargo run -p tollgate-limiter --all-features --example axum_service
//! TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run -p tollgate-limiter --all-features --example axum_service
//!
//! curl -i http://127.0.0.1:3000/
//! curl -i -H 'X-Api-Key: mine' http://127.0.0.1:3000/reports
//! for i in 1 2 3; do curl -sS -o /dev/null -w '%{http_code}\n' http://127.0.0.1:3000/downloads & done; wait
//! ```

use std::{convert::Infallible, env, error::Error, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body, routing::get};
use futures_util::stream;
use tokio::{net::TcpListener, time::sleep};
use tollgate_limiter::{Ask, Limit, Limiter, Quota, Rate, RateLimitLayer, layer::by};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = env::var("TOLLGATE_STORE").unwrap_or_else(|_| "memory:".to_owned());
    let service = router(&Limiter::connect(&store)?)?;
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    // `by::address` needs the addresses.
    axum::serve(listener, service.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// Builds the service with these limits.
pub(crate) fn router(limiter: &Arc<Limiter>) -> Result<Router, String> {
    let per_address = Limit::new("per-address", "20/10s".parse::<Rate>()?);
    let per_key = Arc::new(Limit::new("per-key", "60/min".parse::<Rate>()?));
    let downloads = Limit::new("downloads", Quota::concurrency(2));
    let api_key = by::header("x-api-key");

    // The limits of a layer are one step: a request that one of them rejects isn't charged by the others.
    let everywhere = RateLimitLayer::new(limiter).limit(per_address, by::address);
    let cheap = everywhere.clone().limit(per_key.clone(), api_key.clone());
    let expensive = everywhere.clone().ask(move |request| {
        let key = api_key(request)?;
        Some(Ask::new(&per_key, key).cost(10))
    });
    let few = everywhere.limit(downloads, by::global);

    Ok(Router::new()
        .route("/", get(async || "hello\n").layer(cheap))
        .route("/reports", get(async || "a report\n").layer(expensive))
        .route("/downloads", get(download).layer(few)))
}

/// Returns a body of five lines that takes a second. It counts as in flight until its end.
async fn download() -> Body {
    Body::from_stream(stream::unfold(1, async |line| {
        sleep(Duration::from_millis(200)).await;
        (line <= 5).then(|| (Ok::<_, Infallible>(format!("line {line}\n")), line + 1))
    }))
}
