//! Benchmarks of the parts of a request, in time and allocations: `cargo bench --bench micro`, or a part by
//! name: `cargo bench --bench micro -- routing`.

mod routes;

use std::{net::IpAddr, sync::Arc};

use divan::{AllocProfiler, Bencher, black_box};
use hyper::{
    HeaderMap, Method, Version,
    header::{HeaderName, HeaderValue},
};
use mimalloc::MiMalloc;
use tollgate::{
    config::{self, Config},
    forward::headers::{self, Client},
    rules::key::{self, Subject, jwt::Claims},
};
use tollgate_limiter::{
    Algorithm, Limit, Origin, Quota, Rate, RatelimitHeaders, Standing, algorithm::State, fields,
    store::Outcome,
};
use tollgate_routing::{Matcher, Parameters, Table, View, path};

/// The gateway's allocator, which counts allocations.
#[global_allocator]
static ALLOCATOR: AllocProfiler<MiMalloc> = AllocProfiler::new(MiMalloc);

fn main() {
    divan::main();
}

/// Finds the route among a thousand, including the matched path. The requests are for different services in
/// turn.
#[divan::bench(args = routes::KINDS)]
fn routing(bencher: Bencher<'_, '_>, kind: &str) {
    let matchers = routes::routes().into_iter().map(|(method, host, path)| Matcher {
        host: (!host.is_empty()).then(|| host.parse().expect("a host")),
        path: path.parse().expect("a path"),
        methods: Method::try_from(method).into_iter().collect(),
        headers: Vec::new(),
        query: Vec::new(),
        claims: Vec::new(),
    });
    let table = Table::new(matchers.map(|matcher| (matcher, ())));
    let (requests, headers, parameters) = (routes::requests(kind), HeaderMap::new(), Parameters::default());
    let mut requests = requests.iter().cycle();
    bencher.bench_local(|| {
        let (host, sent, route) = requests.next().expect("the iterator is endless");
        let forwarded = path::forwarded(black_box(sent));
        let matched = path::matched(&forwarded);
        let view = View::new(&Method::GET, host, &matched, &parameters, &headers, &());
        assert_eq!(table.find(&view).is_some(), route.is_some());
    });
}

/// Computes the key of a request for a limit.
#[divan::bench(args = [
    r#""ip""#,
    r#""header:x-api-key""#,
    r#""cookie:session""#,
    r#"["header:x-api-key", "ip"]"#,
    r#"["ip", "path:id", "method"]"#,
])]
fn key(bencher: Bencher<'_, '_>, parts: &str) {
    let (limit, headers) = (limit(&format!("key = {parts}\nrate = \"1/s\"")), request());
    let subject = Subject {
        client: IpAddr::from([192, 0, 2, 7]),
        method: &Method::GET,
        host: "api.example.com",
        query: "",
        queries_in_path: &[],
        headers: &headers,
        peer_is_trusted: false,
        claims: &Claims::new(None, &headers),
        route: "orders",
        parameter: &|name| (name == "id").then_some("81723"),
    };
    bencher.bench_local(|| key::count(black_box(&limit), black_box(&subject)));
}

const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::SlidingWindow,
    Algorithm::SlidingCells { cells: 60 },
    Algorithm::FixedWindow,
    Algorithm::Gcra { burst: None },
    Algorithm::Concurrency,
];

/// The decision of a bucket with 100 permits in ten seconds that is asked just seldom enough to have room, also where a
/// permit lasts a cell longer.
#[divan::bench(args = ALGORITHMS)]
fn grant(bencher: Bencher<'_, '_>, algorithm: Algorithm) {
    const APART_US: u64 = 105_000;
    let mut bucket = Bucket::asked_each(APART_US, algorithm);
    bencher.bench_local(|| {
        bucket.time_us += APART_US;
        assert!(bucket.decide());
    });
}

/// The decision of such a bucket that is full, and when there will be room.
#[divan::bench(args = ALGORITHMS)]
fn refusal(bencher: Bencher<'_, '_>, algorithm: Algorithm) {
    let mut bucket = Bucket::asked_each(1_000, algorithm);
    while bucket.decide() {}
    bencher.bench_local(|| assert!(!bucket.decide()));
}

struct Bucket {
    quota: Quota,
    state: State,
    time_us: u64,
}

impl Bucket {
    /// One that was asked 200 times at this distance.
    fn asked_each(distance_us: u64, algorithm: Algorithm) -> Self {
        let quota = Quota::new(algorithm, Rate { permits: 100, window_us: 10_000_000 });
        let mut bucket = Self { quota, state: State::new(algorithm), time_us: Rate::MAX_WINDOW_US };
        for _ in 0..200 {
            bucket.decide();
            bucket.time_us += distance_us;
        }
        bucket
    }

    fn decide(&mut self) -> bool {
        self.state.count_mut().advance(self.quota, self.time_us);
        let fits = self.state.delay_us(self.quota, self.time_us, 1) == Some(0);
        if fits {
            self.state.count_mut().charge(self.quota, self.time_us, 1);
        }
        fits
    }
}

/// A request's header as it is forwarded: without hop-by-hop fields, and with the client's address.
#[divan::bench]
fn header_for_the_upstream(bencher: Bencher<'_, '_>) {
    let peer = IpAddr::from([192, 0, 2, 7]);
    let client = Client { peer, peer_is_trusted: false, address: peer, scheme: "http" };
    bencher.with_inputs(request).bench_local_refs(|fields| {
        headers::from_client(fields, &[]);
        headers::towards_upstream(fields, &client, Version::HTTP_11, headers::new_request_id());
    });
}

/// An answer's header as it goes on.
#[divan::bench]
fn header_for_the_client(bencher: Bencher<'_, '_>) {
    bencher.with_inputs(answer).bench_local_refs(headers::towards_client);
}

/// The RateLimit fields of so many limits.
#[divan::bench(args = [1, 2])]
fn ratelimit_fields(bencher: Bencher<'_, '_>, limits: usize) {
    let quota = Quota::from(Rate { permits: 100, window_us: 10_000_000 });
    let standing = |name| Standing {
        limit: Arc::new(Limit::new(name, quota)),
        quota,
        outcome: Outcome { charged: true, remaining: 42, grow_us: 7_000_000, delay_us: Some(0), rate: None },
        origin: Origin::Store,
        number: 0,
    };
    let standings = ["per-client", "per-key"].map(standing);
    bencher.with_inputs(answer).bench_local_refs(|fields| {
        fields::write(fields, &standings[..limits], RatelimitHeaders::Draft11);
    });
}

/// A limit of a file.
fn limit(terms: &str) -> Arc<config::LimitSettings> {
    let text = format!(
        "[upstreams.u]\nbuiltin = \"echo\"\n[limits.l]\n{terms}\n[[routes]]\npath = \"/{{id}}\"\nupstream = \"u\"\nlimits = [\"l\"]"
    );
    let (mut config, _) = Config::parse("gateway.toml", &text, &|_| None).expect("a good file");
    config.limits.remove("l").expect("it is there")
}

/// A header as browsers send it.
fn request() -> HeaderMap {
    map(&[
        ("host", "api.example.com"),
        ("connection", "keep-alive"),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        ("accept", "application/json"),
        ("accept-language", "en-US,en;q=0.5"),
        ("accept-encoding", "gzip, deflate, br"),
        ("cookie", "theme=dark; session=4f9c2b1e7a"),
        ("x-api-key", "k-1f0a52d3e97b46"),
    ])
}

/// A header as nginx answers.
fn answer() -> HeaderMap {
    map(&[
        ("server", "nginx/1.22.1"),
        ("date", "Sat, 21 Nov 2026 13:00:00 GMT"),
        ("content-type", "application/json"),
        ("content-length", "200"),
        ("connection", "keep-alive"),
    ])
}

fn map(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let lines = lines.iter();
    lines.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}
