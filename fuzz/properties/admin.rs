//! Requests of operators.

use std::{net::SocketAddr, sync::Arc};

use arc_swap::ArcSwap;
use axum::{
    Router,
    body::{self, Body},
    extract::ConnectInfo,
};
use hyper::{Method, Request, Uri, header::HeaderValue};
use tokio::runtime::{Builder, Runtime};
use tollgate_limiter::Limiter;
use tower::ServiceExt;

use crate::{
    admin::{Admin, router},
    gateway::Gateway,
    server::Status,
};

use super::{config, fields_of, parts};

/// Every request to the admin port gets a response, and none is a server error.
pub fn admin(bytes: &[u8]) {
    let [method, target, fields, body] = parts(bytes);
    let (Ok(method), Ok(target)) = (Method::from_bytes(method), target.try_into() as Result<Uri, _>) else {
        return;
    };
    let mut request = Request::new(Body::from(body.to_vec()));
    (*request.method_mut(), *request.uri_mut()) = (method, target);
    *request.headers_mut() = fields_of(&String::from_utf8_lossy(fields).replace(';', "\n").into_bytes());
    for (name, value) in [("host", "localhost"), ("content-type", "application/json")] {
        let field = request.headers_mut().entry(name);
        field.or_insert(HeaderValue::from_static(value));
    }
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    request.extensions_mut().insert(ConnectInfo(peer));
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let config = config(
                "[store]\nmax_memory = \"1MiB\"\n[limits.l]\nrate = \"5/s\"\nkey = \"ip\"\n\
                 [limits.m]\nrate = \"5\"\nalgorithm = \"concurrency\"\nkey = [\"header:x-k\", \"ip\"]\n\
                 [[routes]]\npath = \"/\"\nrespond = {}\nlimits = [\"l\", \"m\"]",
            );
            let limiter = Limiter::open(&config.store).expect("a store in this process opens");
            let gateway = Gateway::build(&config, &limiter, None);
            let gateway = Arc::new(ArcSwap::from_pointee(gateway));
            let status = Arc::new(Status::new(Vec::new()));
            let router = router(Arc::new(Admin::new(Default::default(), gateway, status)), Router::new());
            let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
            assert!(!response.status().is_server_error(), "{response:?}");
            if response.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream") {
                // This response never ends.
                return;
            }
            let body = body::to_bytes(response.into_body(), usize::MAX).await.expect("a whole answer");
            assert!(str::from_utf8(&body).is_ok());
        });
    });
}

thread_local! {
    static RUNTIME: Runtime =
        Builder::new_current_thread().enable_all().build().expect("the system gives a runtime");
}
