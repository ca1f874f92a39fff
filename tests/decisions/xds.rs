//! Rules by xDS, from servers that this test makes: good ones, and some that send nonsense, too much, or nothing.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use prost::Message;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};
use tokio_rustls::TlsAcceptor;

use super::{
    reference::Service,
    rls::{OK, OVER_LIMIT, framed},
};
use crate::harness::{
    redis::{Redis, tls::Certificates},
    wait_until,
};

const RULES: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";
const PATIENCE: Duration = Duration::from_secs(40);

#[derive(Clone, PartialEq, Message)]
struct Ask {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(message, optional, tag = "2")]
    node: Option<Named>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
    #[prost(message, optional, tag = "6")]
    error: Option<Fault>,
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, Message)]
struct Fault {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, Message)]
struct Resources {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<Resource>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Rules {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(message, repeated, tag = "3")]
    descriptors: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "3")]
    limit: Option<Policy>,
}

#[derive(Clone, PartialEq, Message)]
struct Policy {
    #[prost(int32, tag = "1")]
    unit: i32,
    #[prost(uint32, tag = "2")]
    requests_per_unit: u32,
}

const UNKNOWN: i32 = 0;
const HOUR: i32 = 3;

/// A response of this version with a limit of `k` in the domain `d`. Its nonce is the version.
fn rules(version: &str, requests_per_unit: u32, unit: i32) -> Vec<u8> {
    response(version, vec![resource("d", requests_per_unit, unit)], RULES)
}

fn resource(domain: &str, requests_per_unit: u32, unit: i32) -> Resource {
    let limit = Some(Policy { unit, requests_per_unit });
    let descriptors = vec![Entry { key: "k".into(), limit }];
    let rules = Rules { name: format!("of-{domain}"), domain: domain.into(), descriptors };
    Resource { type_url: RULES.into(), value: rules.encode_to_vec() }
}

fn response(version: &str, resources: Vec<Resource>, type_url: &str) -> Vec<u8> {
    let (version, nonce) = (version.to_owned(), format!("nonce-{version}"));
    framed(&Resources { version, resources, type_url: type_url.into(), nonce }.encode_to_vec())
}

/// Something that a server does on its stream.
enum Act {
    Send(Vec<u8>),
    Reset,
    Refuse,
}

/// A management server. It serves one connection after the other, as it is told.
struct Server {
    address: SocketAddr,
    asks: Receiver<Ask>,
    acts: UnboundedSender<Act>,
}

impl Server {
    fn start(tls: Option<TlsAcceptor>) -> Self {
        let ((asked, asks), (acts, told)) = (channel(), unbounded_channel());
        let (place, address) = channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                place.send(listener.local_addr().unwrap()).unwrap();
                let mut told = told;
                while let Ok((stream, _)) = listener.accept().await {
                    let served = match &tls {
                        None => serve(stream, &asked, &mut told).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, &asked, &mut told).await,
                            Err(_) => Some(()),
                        },
                    };
                    if served.is_none() && told.is_closed() {
                        return;
                    }
                }
            });
        });
        Self { address: address.recv().unwrap(), asks, acts }
    }

    fn act(&self, act: Act) {
        self.acts.send(act).unwrap();
    }

    /// The next request of the client.
    fn next(&self) -> Ask {
        self.asks.recv_timeout(PATIENCE).expect("the client asks")
    }

    fn variables(&self) -> [(&'static str, String); 3] {
        [
            ("CONFIG_TYPE", "GRPC_XDS_SOTW".to_owned()),
            ("CONFIG_GRPC_XDS_SERVER_URL", format!("localhost:{}", self.address.port())),
            ("CONFIG_GRPC_XDS_NODE_ID", "of-the-test".to_owned()),
        ]
    }

    /// Starts a service that gets its rules here.
    fn client(&self, redis: &Redis, more: &[(&str, &str)]) -> Service {
        let variables = self.variables();
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Service::spawn(redis, &[], &[&variables[..], more].concat())
    }
}

/// Serves a connection to the end of its first stream.
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    asked: &Sender<Ask>,
    told: &mut UnboundedReceiver<Act>,
) -> Option<()> {
    let mut connection = h2::server::handshake(stream).await.ok()?;
    let (request, mut respond) = connection.accept().await?.ok()?;
    let driver = async { while connection.accept().await.is_some() {} };
    let talk = async {
        assert!(request.uri().path().ends_with("AggregatedDiscoveryService/StreamAggregatedResources"));
        let (mut body, mut received) = (request.into_body(), BytesMut::new());
        let mut sender = None;
        loop {
            tokio::select! {
                data = body.data() => {
                    let data = data?.ok()?;
                    let _ = body.flow_control().release_capacity(data.len());
                    received.extend_from_slice(&data);
                    while received.len() >= 5 {
                        let length = u32::from_be_bytes(received[1..5].try_into().unwrap()) as usize;
                        if received.len() < 5 + length {
                            break;
                        }
                        let message = received.split_to(5 + length);
                        asked.send(Ask::decode(&message[5..]).unwrap()).ok()?;
                    }
                }
                act = told.recv() => {
                    let head = hyper::Response::builder().header("content-type", "application/grpc");
                    match act? {
                        Act::Refuse => {
                            let head = head.header("grpc-status", "7").header("grpc-message", "not you");
                            respond.send_response(head.body(()).unwrap(), true).ok()?;
                            return Some(());
                        }
                        Act::Reset => {
                            respond.send_reset(h2::Reason::INTERNAL_ERROR);
                            return Some(());
                        }
                        Act::Send(bytes) => {
                            if sender.is_none() {
                                sender = Some(respond.send_response(head.body(()).unwrap(), false).ok()?);
                            }
                            sender.as_mut().unwrap().send_data(Bytes::from(bytes), false).ok()?;
                        }
                    }
                }
            }
        }
    };
    // After the end of the stream, the rest of it is sent.
    let ended = async {
        let ended = talk.await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        ended
    };
    tokio::select! {
        () = driver => Some(()),
        ended = ended => ended,
    }
}

#[test]
fn rules_are_accepted_or_rejected_and_the_last_good_ones_stay() {
    let (redis, server) = (Redis::start(), Server::start(None));
    let mut service = server.client(&redis, &[]);
    let first = server.next();
    assert_eq!((first.node.unwrap().id.as_str(), first.type_url.as_str()), ("of-the-test", RULES));
    assert_eq!((first.version.as_str(), first.nonce.as_str(), first.error), ("", "", None));
    // It listens once it has rules.
    assert!(!service.listens());
    server.act(Act::Send(rules("1", 3, HOUR)));
    let ack = server.next();
    assert_eq!((ack.version.as_str(), ack.nonce.as_str(), ack.error, ack.node), ("1", "nonce-1", None, None));
    service.wait();
    wait_until("the feed is up", || service.metric("tollgate_rules_feed_up") == 1.0);
    assert_eq!(service.left("d", "k"), (OK, 2));

    server.act(Act::Send(rules("2", 9, UNKNOWN)));
    let nack = server.next();
    assert_eq!(service.metric("tollgate_rules_feed_up"), 0.0);
    assert_eq!((nack.version.as_str(), nack.nonce.as_str()), ("1", "nonce-2"));
    let fault = nack.error.unwrap();
    assert!(fault.code == 3 && fault.message.contains("`unknown` is not a unit of time"), "{fault:?}");
    assert_eq!(service.left("d", "k"), (OK, 1));

    // Counts stay when rules change.
    server.act(Act::Send(rules("3", 4, HOUR)));
    assert_eq!(server.next().version, "3");
    assert_eq!(service.metric("tollgate_rules_feed_up"), 1.0);
    assert_eq!(service.left("d", "k"), (OK, 1));

    // The server goes, and comes back with the same rules. It sends nothing to a client that states their version.
    server.act(Act::Reset);
    wait_until("the feed is down", || service.metric("tollgate_rules_feed_up") == 0.0);
    let again = server.next();
    assert_eq!((again.nonce.as_str(), again.node.is_some()), ("", true));
    if again.version != "3" {
        server.act(Act::Send(rules("3", 4, HOUR)));
        assert_eq!(server.next().version, "3");
    }
    assert_eq!(service.metric("tollgate_rules_feed_up"), 1.0);
    assert_eq!(service.left("d", "k"), (OK, 0));

    // One that has restarted numbers its rules from the beginning.
    server.act(Act::Reset);
    let again = server.next();
    if again.version != "3" {
        server.act(Act::Send(rules("3", 5, HOUR)));
        assert_eq!(server.next().version, "3");
    }
    assert_eq!(service.ask("d", "k").statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 5);
    server.act(Act::Send(response("4", vec![], RULES)));
    assert_eq!(server.next().version, "4");
    assert_eq!(
        (service.left("d", "k"), service.ask("d", "k").statuses[0].current_limit.is_none()),
        ((OK, 0), true)
    );
    server.act(Act::Send(rules("5", 4, HOUR)));
    assert_eq!(server.next().version, "5");
    assert_eq!(service.left("d", "k").0, OVER_LIMIT);
}

#[test]
fn streams_that_bring_the_same_rules_again_cost_no_reload() {
    let (redis, server) = (Redis::start(), Server::start(None));
    let mut service = server.client(&redis, &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")]);
    service.wait();
    let reloads = || service.metric("tollgate_reloads_total{result=\"good\"}");
    let pair = [resource("d", 3, HOUR), resource("e", 3, HOUR)];
    let mut begun = Instant::now();
    for round in 0..4 {
        assert_eq!(server.next().version, "");
        // Servers that keep resources in a map send them in any order.
        let mut resources = pair.to_vec();
        resources.rotate_left(round % 2);
        let version = round.to_string();
        server.act(Act::Send(response(&version, resources, RULES)));
        assert_eq!(server.next().version, version);
        assert_eq!((reloads(), service.metric("tollgate_rules_feed_up")), (1.0, 1.0));
        if round == 0 {
            begun = Instant::now();
        }
        server.act(Act::Reset);
    }
    assert_eq!(server.next().version, "");
    // The least pauses are 0.25, 0.5, 1 and 2 s.
    assert!(begun.elapsed() > Duration::from_millis(3_700), "{:?}", begun.elapsed());

    // What a rejected response has isn't in use, and what was in use before still is.
    server.act(Act::Send(rules("4", 9, UNKNOWN)));
    assert!(server.next().error.is_some());
    assert_eq!(service.metric("tollgate_rules_feed_up"), 0.0);
    server.act(Act::Send(response("5", pair.to_vec(), RULES)));
    assert_eq!(server.next().version, "5");
    assert_eq!((reloads(), service.metric("tollgate_rules_feed_up")), (1.0, 1.0));

    server.act(Act::Send(rules("5", 4, HOUR)));
    assert_eq!(server.next().version, "5");
    assert_eq!((reloads(), service.left("d", "k")), (2.0, (OK, 3)));
    // After new rules, the pauses begin again from the first, which the log tells.
    assert_eq!(service.log().matches("trying again").count(), 1, "{}", service.log());
    server.act(Act::Reset);
    wait_until("it is logged", || service.log().matches("trying again").count() == 2);
    assert_eq!(server.next().version, "");
    server.act(Act::Send(rules("1", 5, HOUR)));
    assert_eq!(server.next().version, "1");
    assert_eq!((reloads(), service.left("d", "k")), (3.0, (OK, 3)));
}

#[test]
fn servers_that_misbehave_are_asked_again() {
    let (redis, server) = (Redis::start(), Server::start(None));
    let mut service = server.client(&redis, &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")]);
    service.wait();
    assert_eq!(service.left("d", "k"), (OK, 0));
    let before = service.memory_kib();
    let huge = [&b"\0\xff\xff\xff\xff"[..], &[0; 1 << 20]].concat();
    for act in [
        Act::Refuse,
        Act::Reset,
        Act::Send(b"\xffnonsense".to_vec()),
        Act::Send(huge),
        Act::Send(framed(b"\x0a\xff\xff\xff\x7f")),
        Act::Send(response("x", vec![], "type.googleapis.com/envoy.config.cluster.v3.Cluster")),
    ] {
        assert_eq!(server.next().version, "");
        server.act(act);
    }
    assert_eq!(server.next().version, "");
    wait_until("it is logged", || service.log().contains("no rules from http://localhost:"));
    assert!(service.memory_kib() < before + (64 << 10), "{before} {}", service.memory_kib());
    server.act(Act::Send(rules("1", 3, HOUR)));
    assert_eq!(server.next().version, "1");
    assert_eq!(service.left("d", "k"), (OK, 2));

    // Two bytes each, which would be hundreds in memory.
    let resource = Resource {
        type_url: RULES.into(),
        value: [b"\x12\x01d".to_vec(), b"\x1a\0".repeat(2_000_000)].concat(),
    };
    server.act(Act::Send(response("2", vec![resource], RULES)));
    let error = server.next().error.unwrap();
    assert!(error.message.contains("more than 200000 values"), "{}", error.message);
    assert!(service.memory_kib() < before + (400 << 10), "{before} {}", service.memory_kib());

    // One that sends wrong rules again and again is rejected more and more slowly.
    let since = Instant::now();
    for round in 0..5 {
        server.act(Act::Send(rules("2", round, UNKNOWN)));
        assert!(server.next().error.is_some());
    }
    assert!(since.elapsed() > Duration::from_millis(1_000), "{:?}", since.elapsed());
    assert_eq!(service.left("d", "k"), (OK, 1));
}

#[test]
fn a_server_that_says_nothing_keeps_nobody_from_asking() {
    let redis = Redis::start();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let variables = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &address),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ];
    let mut service = Service::spawn(&redis, &[], &variables);
    let _stream = silent.accept().unwrap();
    service.wait();
    assert_eq!(service.left("d", "k"), (OK, 0));
}

/// Reads what an HTTP/2 client sends up to its first HEADERS frame (RFC 9113, sections 3.4 and 4.1).
fn read_head_of_request(stream: &mut std::net::TcpStream) {
    stream.read_exact(&mut [0; 24]).unwrap();
    let mut head = [0; 9];
    while head[3] != 1 {
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).unwrap();
    }
}

/// The log has the cause of a failure, and not only that there was one.
#[test]
fn the_cause_of_a_broken_stream_is_logged() {
    let redis = Redis::start();
    let old = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = old.local_addr().unwrap().to_string();
    let variables = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &address),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ];
    let mut service = Service::spawn(&redis, &[], &variables);
    let mut stream = old.accept().unwrap().0;
    read_head_of_request(&mut stream);
    // An HTTP/1.1 server would send text, too, which isn't a frame.
    stream.write_all(&[0xff; 64]).unwrap();
    service.wait();
    let told = format!("no rules from http://{address}: ");
    wait_until("it is logged", || service.log().contains(&told));
    let log = service.log();
    let line = log.lines().find(|line| line.contains(&told)).unwrap();
    assert!(line.contains("frame with invalid size"), "{line}");
}

#[test]
fn server_and_client_verify_each_other() {
    let redis = Redis::start();
    let certificates = Certificates::for_server(&["xds.internal"]);
    let server = Server::start(Some(TlsAcceptor::from(certificates.server(&["h2"], true))));
    let path = |name: &str| certificates.path(name).display().to_string();
    let (ca, cert, key) = (path("ca.pem"), path("client.pem"), path("client.key"));
    let tls = [
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &cert),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ];
    // The host isn't what the certificate is valid for.
    let mut service = server.client(&redis, &tls);
    service.wait();
    wait_until("the handshake fails", || service.log().contains("no rules from https://localhost:"));
    drop(service);
    let named = [&tls[..], &[("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "xds.internal")]].concat();
    let service = server.client(&redis, &named);
    assert_eq!(server.next().version, "");
    server.act(Act::Send(rules("1", 3, HOUR)));
    assert_eq!(server.next().version, "1");
    assert_eq!(service.left("d", "k"), (OK, 2));
}
