//! The tower layer in an axum service, over real sockets: the gateway's responses, with the same counts.

#[allow(dead_code)] // It has a main, which listens on a port of its own.
#[path = "../crates/limiter/examples/axum_service.rs"]
mod axum_service;

use std::{
    convert::Infallible,
    future::{Future, pending, ready},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
        mpsc,
    },
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use crate::harness::{client::Answer, client::Client, gateway::Gateway, redis::Redis, wait_until};
use axum::{
    Router,
    body::Body,
    http::{Request, Response, request::Parts},
    routing::{MethodRouter, get},
};
use futures_util::stream::{self, StreamExt};
use tokio::{net::TcpListener, sync::oneshot};
use tollgate_limiter::{
    Ask, Key, Limit, Limiter, OnFailure, Quota, Rate, RateLimitLayer, RatelimitHeaders, StoreSettings,
    layer::{RateLimit, by},
};
use tower::{Layer, Service, ServiceExt, service_fn};

/// An axum server in this process, on its own threads. Dropping it ends the server.
struct Server {
    address: SocketAddr,
    _running: oneshot::Sender<()>,
}

impl Server {
    /// Serves the routes that a function builds with a limiter on the store at this URL.
    fn start(store: &str, router: impl FnOnce(&Arc<Limiter>) -> Router + Send + 'static) -> Self {
        let (running, ended) = oneshot::channel();
        let (listens, address) = mpsc::channel();
        let store = store.to_owned();
        thread::spawn(move || {
            let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
            threads.unwrap().block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let limiter = limiter(&store);
                listens.send(listener.local_addr().unwrap()).unwrap();
                let router = router(&limiter).into_make_service_with_connect_info::<SocketAddr>();
                tokio::spawn(async { axum::serve(listener, router).await });
                let _ = ended.await;
            });
        });
        Self { address: address.recv().unwrap(), _running: running }
    }

    fn get(&self, path: &str) -> Answer {
        self.connect().get(path)
    }

    fn connect(&self) -> Client {
        Client::connect(self.address)
    }
}

/// Returns a limiter with a timeout that even a busy machine doesn't exceed.
fn limiter(url: &str) -> Arc<Limiter> {
    Limiter::open(&StoreSettings { timeout: Duration::from_secs(5), ..StoreSettings::at(url).unwrap() })
        .unwrap()
}

fn limit(name: &str, rate: &str) -> Limit {
    Limit::new(name, rate.parse::<Rate>().unwrap())
}

/// A service that counts its calls.
fn counting(calls: Arc<AtomicU32>) -> MethodRouter {
    get(async move || calls.fetch_add(1, Relaxed).to_string())
}

/// Returns the fields about limits, without the milliseconds, which differ between two responses.
fn fields(answer: &Answer) -> Vec<(String, String)> {
    let told = |name: &str| name.contains("ratelimit") || name == "content-type";
    answer.headers.iter().filter(|(name, _)| told(name)).cloned().collect()
}

#[test]
fn the_gateway_and_the_layer_are_one_limiter_with_the_same_answers() {
    let redis = Redis::start();
    let gateway = Gateway::start(&format!(
        "{}[server]\nratelimit_headers = \"both\"\n[limits.per-key]\nkey = \"header:x-api-key\"\nrate = \"4/day\"\n[limits.per-client]\nkey = \"ip\"\nrate = \"100/day\"\n[[routes]]\npath = \"/\"\nrespond = {{ status = 200 }}\nlimits = [\"per-key\", \"per-client\"]\n",
        redis.store()
    ));
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let server = Server::start(&redis.url(), move |limiter| {
        let layer = RateLimitLayer::new(limiter)
            .limit(limit("per-key", "4/day"), by::header("x-api-key"))
            .limit(limit("per-client", "100/day"), by::address)
            .headers(RatelimitHeaders::Both);
        Router::new().route("/", counting(counted)).layer(layer)
    });
    let mut from_gateway = Client::connect(gateway.address());
    let mut from_layer = server.connect();
    let key = "X-Api-Key: secret\r\n";

    assert_eq!(
        from_gateway.get_with("/", key).header("ratelimit").unwrap().split(',').next(),
        Some("\"per-key\";r=3;t=86400")
    );
    let admitted = from_layer.get_with("/", key);
    assert_eq!((admitted.status, admitted.text().as_str()), (200, "0"));
    assert_eq!(admitted.lines("ratelimit-policy"), ["\"per-key\";q=4;w=86400, \"per-client\";q=100;w=86400"]);
    assert_eq!(admitted.header("x-ratelimit-remaining"), Some("2"));
    assert_eq!(from_gateway.get_with("/", key).header("x-ratelimit-remaining"), Some("1"));
    assert_eq!(from_layer.get_with("/", key).header("x-ratelimit-remaining"), Some("0"));

    let (expected, refused) = (from_gateway.get_with("/", key), from_layer.get_with("/", key));
    assert_eq!((expected.status, refused.status), (429, 429));
    assert_eq!(fields(&expected), fields(&refused));
    assert!(expected.retry_after_ms() - refused.retry_after_ms() < 60_000);
    let [mut expected, mut refused] = [expected.json(), refused.json()];
    for problem in [&mut expected, &mut refused] {
        assert!(problem["retry_after_ms"].take().is_u64());
        assert!(
            problem["detail"].take().as_str().unwrap().starts_with("limit `per-key` exceeded: retry in ")
        );
    }
    assert_eq!(expected, refused);
    let grpc = from_layer.get_with("/", &format!("{key}Content-Type: application/grpc\r\n"));
    assert_eq!((grpc.status, grpc.header("grpc-status")), (200, Some("8")));

    assert_eq!(calls.load(Relaxed), 2, "what is refused doesn't reach the service");
    assert!(!redis.keys("*").iter().any(|name| name.contains("secret")));
    // Nor does it take anything of the other limit.
    assert_eq!(from_layer.get("/").header("ratelimit"), Some("\"per-client\";r=95;t=86400"));
}

#[test]
fn limiters_on_one_redis_are_one() {
    let redis = Redis::start();
    let router = |limiter: &Arc<Limiter>| {
        let layer = RateLimitLayer::new(limiter).limit(limit("all", "20/day"), by::global);
        Router::new().route("/", get(async || "")).route_layer(layer)
    };
    let servers = [Server::start(&redis.url(), router), Server::start(&redis.url(), router)];
    let admitted = std::thread::scope(|scope| {
        let ask = |server: &Server| {
            let mut client = server.connect();
            (0..10).filter(|_| client.get("/").status == 200).count()
        };
        let asking: Vec<_> = (0..6)
            .map(|at| {
                scope.spawn({
                    let server = &servers[at % 2];
                    move || ask(server)
                })
            })
            .collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).sum::<usize>()
    });
    assert_eq!(admitted, 20);
    assert_eq!(servers[0].get("/nowhere").status, 404, "a route layer leaves other paths alone");
}

/// Routes with one place: one that is short, one whose body doesn't end and one without an answer, which tell
/// that they have begun.
fn with_one_place(limiter: &Arc<Limiter>, begun: &Arc<AtomicU32>) -> Router {
    let layer = RateLimitLayer::new(limiter).limit(Limit::new("running", Quota::concurrency(1)), by::global);
    let (begins, begins_too) = (begun.clone(), begun.clone());
    let endless = async move || {
        begins.fetch_add(1, Relaxed);
        Body::from_stream(stream::once(ready(Ok::<_, Infallible>("first"))).chain(stream::pending()))
    };
    let never = async move || {
        begins_too.fetch_add(1, Relaxed);
        pending::<()>().await;
    };
    Router::new()
        .route("/short", get(async || "short"))
        .route("/endless", get(endless))
        .route("/never", get(never))
        .layer(layer)
}

/// Begins a client's request, once a slot is free.
fn begin(server: &Server, begun: &AtomicU32, path: &str) -> Client {
    let before = begun.load(Relaxed);
    let mut beginning = None;
    wait_until("the request has begun", || {
        let client = beginning.insert(server.connect());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        // It has begun, or is answered with a refusal.
        while begun.load(Relaxed) == before && !client.hears_within(Duration::from_millis(2)) {}
        begun.load(Relaxed) > before
    });
    beginning.unwrap()
}

#[test]
fn a_place_is_free_again_when_the_body_has_ended_or_the_client_has_left() {
    let redis = Redis::start();
    for store in ["memory:", &redis.url()] {
        let begun = Arc::new(AtomicU32::new(0));
        let counted = begun.clone();
        let server = Server::start(store, move |limiter| with_one_place(limiter, &counted));
        let free = || wait_until("the place is free", || server.get("/short").status == 200);
        free();
        free();

        let mut reader = begin(&server, &begun, "/endless");
        assert_eq!(reader.head().status, 200);
        let refused = server.get("/short");
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
        assert_eq!(refused.header("retry-after-ms"), None);
        drop(reader);
        free();

        let waiting = begin(&server, &begun, "/never");
        assert_eq!(server.get("/short").status, 429);
        drop(waiting);
        free();
    }
}

#[test]
fn the_limits_say_what_holds_while_the_store_is_away() {
    let redis = Redis::away();
    let server = Server::start(&redis.url(), |limiter| {
        let by_policy = |name, policy| {
            RateLimitLayer::new(limiter).limit(limit(name, "1/day").on_failure(policy), by::global)
        };
        Router::new()
            .route("/deny", get(async || "").layer(by_policy("deny", OnFailure::Deny)))
            .route("/allow", get(async || "").layer(by_policy("allow", OnFailure::Allow)))
            .route("/local", get(async || "").layer(by_policy("local", OnFailure::Local)))
    });
    let denied = server.get("/deny");
    assert_eq!((denied.status, denied.header("retry-after")), (503, Some("1")));
    assert_eq!(denied.json()["code"], "store-unavailable");
    assert_eq!([server.get("/allow").status, server.get("/allow").status], [200, 200]);
    assert_eq!([server.get("/local").status, server.get("/local").status], [200, 429]);
}

#[test]
fn a_limit_may_hold_a_request_until_there_is_room() {
    let server = Server::start("memory:", |limiter| {
        let patient = limit("patient", "1/300ms").wait_at_most(Duration::from_secs(10));
        let layer = RateLimitLayer::new(limiter).limit(patient, by::global);
        Router::new().route("/", get(async || "")).layer(layer)
    });
    let since = Instant::now();
    assert_eq!([server.get("/").status, server.get("/").status], [200, 200]);
    assert!(since.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_response_tells_what_its_request_has_cost() {
    let server = Server::start("memory:", |limiter| {
        let tokens = Arc::new(limit("tokens", "100/day"));
        let layer = RateLimitLayer::new(limiter)
            .ask(move |_| Some(Ask::new(&tokens, Key::global()).settled_later(50)))
            .settle(|response, admission| {
                let spent = response.headers.get("x-tokens").and_then(|spent| spent.to_str().ok());
                admission.record("tokens", spent.map_or(0, |spent| spent.parse::<u32>().unwrap() - 1));
            });
        Router::new().route("/", get(async || [("x-tokens", "98")])).layer(layer)
    });
    assert_eq!(server.get("/").header("ratelimit"), Some("\"tokens\";r=99;t=86400"));
    assert_eq!(server.get("/").header("ratelimit"), Some("\"tokens\";r=1;t=86400"));
    assert_eq!(server.get("/").status, 429);
}

#[test]
fn the_example_limits_as_it_says() {
    let server = Server::start("memory:", |limiter| axum_service::router(limiter).unwrap());
    let mut client = server.connect();
    let key = "X-Api-Key: mine\r\n";
    assert_eq!(client.get("/").lines("ratelimit"), ["\"per-address\";r=19;t=10"]);
    let report = client.get_with("/reports", key);
    assert!(report.header("ratelimit").unwrap().contains("\"per-key\";r=50;t=60"), "{report:?}");
    for _ in 0..5 {
        assert_eq!(client.get_with("/reports", key).status, 200);
    }
    let refused = client.get_with("/reports", key);
    assert_eq!((refused.status, &refused.json()["violated-policies"][0]), (429, &"per-key".into()));
    assert_eq!(client.get_with("/", key).status, 429);

    let mut running = [server.connect(), server.connect()];
    for client in &mut running {
        client.send(b"GET /downloads HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.head().status, 200);
    }
    assert_eq!(client.get("/downloads").json()["violated-policies"][0], "downloads");
}

fn on_one_thread<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Ready once it has been asked, and not as a clone.
struct Fussy {
    is_ready: bool,
}

impl Clone for Fussy {
    fn clone(&self) -> Self {
        Self { is_ready: false }
    }
}

impl Service<Request<Body>> for Fussy {
    type Response = Response<Body>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Response<Body>, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(if self.is_ready { Ok(Response::default()) } else { Err("not asked whether it is ready") })
    }
}

#[test]
fn the_service_that_was_ready_is_called_and_its_errors_pass() {
    on_one_thread(async {
        let limiter = limiter("memory:");
        let layer = RateLimitLayer::new(&limiter).limit(limit("all", "3/day"), by::global);
        let mut fussy = layer.layer(Fussy { is_ready: false });
        for status in [200, 200, 200, 429] {
            let ready = fussy.ready().await.unwrap();
            assert_eq!(ready.call(Request::default()).await.unwrap().status(), status);
        }
        let failing = service_fn(|_: Request<Body>| ready(Err::<Response<Body>, _>("broken")));
        let broken = RateLimitLayer::new(&limiter).layer(failing).oneshot(Request::default()).await;
        assert_eq!(broken.err(), Some("broken"));
    });
}

#[test]
fn who_has_no_address_is_counted_with_all_such() {
    let parts = |request: Request<()>| -> Parts { request.into_parts().0 };
    assert_eq!(by::address(&parts(Request::default())), Some(Key::global()));
    let key = by::header("x-key");
    assert_eq!(key(&parts(Request::default())), None);
    let twice = Request::builder().header("x-key", "a").header("x-key", "b").body(()).unwrap();
    let once = Request::builder().header("x-key", "a").body(()).unwrap();
    assert_eq!(key(&parts(twice)), key(&parts(once)));
}

#[test]
fn a_url_of_no_store_is_told_without_its_password() {
    for url in ["redis:/me:secret@h", "mysql://me:secret@h", ""] {
        let told = Limiter::connect(url).unwrap_err().to_string();
        let (_, remedy) = told.split_once('\n').expect("a line with the remedy");
        assert!(remedy.contains("redis://") && !told.contains("secret"), "{told}");
    }
}

#[test]
fn what_applications_share_may_be_sent_anywhere() {
    fn is_shared<T: Send + Sync + 'static>() {}
    is_shared::<Limiter>();
    is_shared::<RateLimitLayer>();
    is_shared::<RateLimit<Fussy>>();
    is_shared::<tollgate_limiter::Admission>();
    is_shared::<tollgate_limiter::Refusal>();
}
