//! The parts of gRPC beyond HTTP/2. tests/proxy/clients.rs uses real gRPC implementations.

use std::{sync::Arc, thread, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::{HeaderMap, Response, body::Frame};
use tokio::sync::Notify;

use crate::{
    harness::{
        gateway::Gateway,
        http2::{self, whole},
        upstream::Upstream,
        wire::WireUpstream,
    },
    proxy::{cleartext_http2, forward_to, quoted},
};

/// A gateway with one worker before an upstream by HTTP/2, with these further tables.
fn gateway(url: &str, tables: &str) -> Gateway {
    Gateway::start(&format!("[server]\nworkers = 1\n{}{tables}", forward_to(&[quoted(url)], "http2 = true")))
}

/// Answers each call with a message and these trailers.
fn answering(trailers: &[(&'static str, &'static str)]) -> Upstream {
    let trailers: HeaderMap =
        trailers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    Upstream::speaking(cleartext_http2(), move |_| {
        let frames = [Frame::data(Bytes::from("\0\0\0\0\x02up")), Frame::trailers(trailers.clone())].map(Ok);
        let body = BoxBody::new(StreamBody::new(futures_util::stream::iter(frames)));
        let response = Response::builder().header("content-type", "application/grpc").body(body).unwrap();
        async { response }
    })
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

#[test]
fn a_call_goes_through_with_its_trailers_and_its_time() {
    let upstream = answering(&[("grpc-status", "0"), ("x-more", "yes")]);
    let gateway = gateway(&upstream.url(), "");
    http2::run(async {
        let mut client = http2::connect(gateway.address()).await;
        let (head, body) = client.call("/a.B/C", &[("grpc-timeout", "250m"), ("te", "trailers")]).await;
        assert_eq!(
            (head.status.as_u16(), text(&head.headers, "content-type")),
            (200, Some("application/grpc"))
        );
        let (message, trailers) = whole(body).await.unwrap();
        let trailers = trailers.unwrap();
        assert_eq!((message.as_slice(), text(&trailers, "grpc-status")), (&b"\0\0\0\0\x02up"[..], Some("0")));
        assert_eq!(text(&trailers, "x-more"), Some("yes"));
    });
    let seen = upstream.last();
    assert_eq!((seen.uri.path(), text(&seen.headers, "grpc-timeout")), ("/a.B/C", Some("250m")));
    assert_eq!(text(&seen.headers, "te"), Some("trailers"));
}

#[test]
fn a_trailer_tells_what_a_call_cost() {
    let upstream = answering(&[("grpc-status", "0"), ("x-used", "30")]);
    let limit = "limits = [\"l\"]\n[limits.l]\nkey = \"global\"\nrate = \"100/h\"\n\
                 cost = { response_header = \"x-used\", estimate = 10 }\n";
    let gateway = gateway(&upstream.url(), limit);
    http2::run(async {
        let mut client = http2::connect(gateway.address()).await;
        for left in [90, 60] {
            let (head, body) = client.call("/a.B/C", &[]).await;
            assert!(
                text(&head.headers, "ratelimit").unwrap().starts_with(&format!("\"l\";r={left};")),
                "{head:?}"
            );
            whole(body).await.unwrap();
        }
    });
}

#[test]
fn the_gateways_own_answers_are_statuses_without_a_body() {
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let silent = WireUpstream::start(|mut wire| wire.wait_for_end());
    let hello = Upstream::hello();
    let route = |path: &str, url: &str, keys: &str, more: &str| {
        format!(
            "[upstreams.{path}]\nservers = [\"{url}\"]\n{keys}\n\
             [[routes]]\npath = \"/{path}/C\"\nupstream = \"{path}\"\n{more}\n"
        )
    };
    let refusing = format!("http://{}", taken.local_addr().unwrap());
    let gateway = Gateway::start(
        &[
            route("limited", &hello.url(), "", "limits = [\"one\"]"),
            route("costly", &hello.url(), "", "limits = [\"costly\"]"),
            route("nobody", &refusing, "", ""),
            route("late", &silent.url(), "timeouts = { response = \"200ms\" }", ""),
            route("ill", &refusing, "health = { path = \"/\", interval = \"100ms\" }", ""),
            "[limits.one]\nkey = \"ip\"\nrate = \"1/h\"\n".to_owned(),
            "[limits.costly]\nkey = \"ip\"\nrate = \"1/h\"\ncost = \"header:x-cost\"\n".to_owned(),
        ]
        .concat(),
    );
    http2::run(async {
        let mut client = http2::connect(gateway.address()).await;
        let (admitted, _) = client.call("/limited/C", &[]).await;
        assert_eq!(text(&admitted.headers, "grpc-status"), None);
        for (path, fields, status, message) in [
            ("/limited/C", &[][..], "8", "limit `one` exceeded: retry in "),
            ("/none/C", &[], "12", "no route matches the request"),
            ("/costly/C", &[("x-cost", "none")], "13", "`x-cost` must state the cost of the request"),
            ("/nobody/C", &[], "14", "the upstream could not be reached"),
            ("/late/C", &[], "4", "the upstream took too long to answer"),
            ("/ill/C", &[], "14", "no server of the upstream is healthy"),
        ] {
            let (head, body) = loop {
                let (head, body) = client.call(path, fields).await;
                // Until it has been probed it may be asked.
                if path != "/ill/C" || text(&head.headers, "grpc-message") == Some(message) {
                    break (head, body);
                }
            };
            assert_eq!(
                (head.status.as_u16(), text(&head.headers, "content-type")),
                (200, Some("application/grpc"))
            );
            assert_eq!(text(&head.headers, "grpc-status"), Some(status), "{path}");
            assert!(text(&head.headers, "grpc-message").unwrap().starts_with(message), "{head:?}");
            assert!(body.is_end_stream(), "{path}: more follows");
            let pushback = text(&head.headers, "grpc-retry-pushback-ms");
            assert_eq!(pushback, text(&head.headers, "retry-after-ms"), "{path}");
            assert_eq!(pushback.is_some(), status == "8");
        }
    });
}

/// How a server breaks a stream off.
#[derive(Clone, Copy, Debug)]
enum Break {
    Reset,
    Close,
}

/// A server that begins to answer each call, and aborts the response on a signal.
fn breaking(how: Break) -> (String, Arc<Notify>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let breaks = Arc::<Notify>::default();
    let is_told = breaks.clone();
    let serve = async move || {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            let response = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
            let mut body = respond.send_response(response, false).unwrap();
            body.send_data(Bytes::from_static(b"\0\0\0\0\x02up"), false).unwrap();
            tokio::select! {
                _ = connection.accept() => panic!("no more comes"),
                () = is_told.notified() => {}
            }
            if matches!(how, Break::Reset) {
                body.send_reset(h2::Reason::INTERNAL_ERROR);
                tokio::spawn(async move { while connection.accept().await.is_some() {} });
            }
        }
    };
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(serve());
    });
    (url, breaks)
}

#[test]
fn a_stream_that_breaks_upstream_is_reset() {
    for how in [Break::Reset, Break::Close] {
        let (url, breaks) = breaking(how);
        let gateway = gateway(&url, "");
        http2::run(async {
            let mut client = http2::connect(gateway.address()).await;
            let (head, mut body) = client.call("/a.B/C", &[]).await;
            assert_eq!((head.status.as_u16(), text(&head.headers, "grpc-status")), (200, None));
            assert_eq!(body.data().await.unwrap().unwrap().len(), 7);
            breaks.notify_one();
            let error = whole(body).await.unwrap_err();
            assert!(error.is_reset() && error.is_remote(), "{how:?}: {error:?}");
            // The client's connection is unhurt.
            let (head, _) = client.call("/none", &[]).await;
            assert_eq!(head.status.as_u16(), 200);
        });
    }
}

#[test]
fn a_client_may_be_silent_in_the_middle_of_a_call() {
    let upstream = Upstream::speaking(cleartext_http2(), |request| async {
        Response::new(BodyExt::boxed(request.into_body().map_err(|error| panic!("{error}"))))
    });
    let gateway = Gateway::start(&format!(
        "[server]\ntimeouts = {{ idle = \"1s\" }}\n{}",
        forward_to(&[quoted(upstream.url())], "http2 = true\ntimeouts = { response = \"1s\" }")
    ));
    http2::run(async {
        let mut client = http2::connect(gateway.address()).await;
        let fields = [("content-type", "application/grpc")];
        let (response, mut said) = client.begin("POST", "/a.B/C", &fields, true);
        let mut heard = response.await.unwrap().into_body();
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(1_800)).await;
            said.send_data(Bytes::from_static(b"\0\0\0\0\x01x"), false).unwrap();
            assert_eq!(heard.data().await.unwrap().unwrap().len(), 6);
        }
        said.send_data(Bytes::new(), true).unwrap();
        assert_eq!(whole(heard).await.unwrap(), (Vec::new(), None));
        // Any other request may not.
        let (response, _said) = client.begin("POST", "/", &[], true);
        let mut heard = response.await.unwrap().into_body();
        heard.data().await.unwrap().unwrap_err();
    });
}
