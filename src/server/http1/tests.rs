use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    spawn,
    task::{JoinHandle, yield_now},
    time::timeout,
};
use tokio_util::task::TaskTracker;
use tollgate_limiter::Limiter;

use super::*;
use crate::{
    config::Config,
    gateway::Gateway,
    server::{
        ConnectionSettings, Door, Status,
        client::Watch,
        clients::Clients,
        settings::TlsOfDoors,
        slots::{ConnectionSlots, PeerKind, ServedPlace},
    },
};

const TOML: &str = "[limits.l]\nkey = \"global\"\nrate = \"1/h\"\n[upstreams.echo]\nbuiltin = \"echo\"\n[[routes]]\npath = \"/{*rest}\"\nupstream = \"echo\"\n\
    [[routes]]\npath = \"/own\"\nrespond = { status = 200, body = \"own\" }\n\
    [[routes]]\npath = \"/limited\"\nrespond = { status = 200 }\nlimits = [\"l\"]\n";
const PATIENCE: Duration = Duration::from_secs(10);

/// A client of a gateway whose upstream describes the request in its response.
struct Client {
    stream: DuplexStream,
    watch: Arc<Watch>,
    served: JoinHandle<io::Result<()>>,
}

impl Client {
    fn connect() -> Self {
        let (config, _) = Config::parse("gateway.toml", TOML, &|_| None).unwrap();
        let gateway = Gateway::build(&config, &Limiter::open(&config.store).unwrap(), None);
        let settings = Arc::new(ConnectionSettings::new(&config.server, TlsOfDoors::default(), &gateway, 1));
        let slots = ConnectionSlots::new(Arc::new(ArcSwap::new(settings.clone())));
        let watch = Arc::new(Watch::new(ServedPlace::new(slots, PeerKind::Client).into()));
        let status = Arc::new(Status::new(Vec::new()));
        let connection = ClientConnection {
            peer: ([127, 0, 0, 1], 1).into(),
            scheme: "http",
            door: Door::Requests,
            kind: PeerKind::Client,
            settings,
            gateway: Arc::new(ArcSwap::from_pointee(gateway)),
            status: status.clone(),
            watch: watch.clone(),
            clients: Arc::new(Clients::new(status)),
            streams: TaskTracker::default(),
        };
        let (stream, server) = duplex(1 << 20);
        let served = spawn(async move {
            let stream = Watched::new(server, connection.watch.clone());
            Http1Server::new(&connection, stream, Input::default()).serve().await
        });
        Self { stream, watch, served }
    }

    /// Sends bytes, and lets the gateway process them.
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
        for _ in 0..3 {
            yield_now().await;
        }
    }

    /// Reads up to and including `end`.
    async fn until(&mut self, end: &str) -> String {
        let mut received = Vec::new();
        let read = async {
            while !received.ends_with(end.as_bytes()) {
                received.push(self.stream.read_u8().await.unwrap());
            }
        };
        let read = timeout(PATIENCE, read).await;
        let received = String::from_utf8(received).unwrap();
        read.unwrap_or_else(|_| panic!("no {end:?} in {received:?}"));
        received
    }

    /// Reads until the connection is closed.
    async fn rest(mut self) -> String {
        let mut received = String::new();
        timeout(PATIENCE, self.stream.read_to_string(&mut received)).await.expect("it is closed").unwrap();
        drop(self.stream);
        self.served.await.unwrap().unwrap();
        received
    }
}

/// Returns the status of each response, and from an echo the path and the length of the body.
fn answers(received: &str) -> Vec<(&str, &str, &str)> {
    received
        .split("HTTP/1.1 ")
        // A problem's text may contain the version, too.
        .filter(|answer| answer.starts_with(|first: char| first.is_ascii_digit()))
        .map(|answer| {
            let part = |from: &str, end: &[char]| {
                let rest = answer.split_once(from).map_or("", |(_, rest)| rest);
                rest.split(end).next().unwrap_or_default()
            };
            (&answer[..3], part("\"path\":\"", &['"']), part("\"body_bytes\":", &[',', '}']))
        })
        .collect()
}

#[tokio::test]
async fn requests_are_answered_in_order_wherever_they_are_split() {
    let requests = b"\r\nPOST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello\
        PUT /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nhe\r\n4\r\nllo!\r\n0\r\nX: y\r\n\r\n\
        GET /c HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /never HTTP/1.1\r\nHost: a\r\n\r\n";
    let expected = [("200", "/a", "5"), ("200", "/b", "6"), ("200", "/c", "0")];
    // The end of the last request that is answered.
    let end = requests.len() - "GET /never HTTP/1.1\r\nHost: a\r\n\r\n".len();
    for at in 0..end {
        let mut client = Client::connect();
        client.send(&requests[..at]).await;
        client.send(&requests[at..]).await;
        assert_eq!(answers(&client.rest().await), expected, "{at}");
    }
    let mut client = Client::connect();
    for byte in &requests[..end] {
        client.send([*byte]).await;
    }
    assert_eq!(answers(&client.rest().await), expected);
}

/// The test's task stands for the worker's other connections.
#[tokio::test]
async fn a_client_that_pipelines_gets_few_answers_a_turn() {
    const REQUESTS: usize = 500;
    for (path, length, most) in
        [("/own", 0, TURN_MOST), ("/limited", 0, TURN_MOST), ("/own", 8_000, TURN_MOST / 4)]
    {
        let mut client = Client::connect();
        let large = "a".repeat(length);
        let flood = format!("GET {path} HTTP/1.1\r\nHost: a\r\nX: {large}\r\n\r\n").repeat(REQUESTS);
        client.stream.write_all(flood.as_bytes()).await.unwrap();
        let (mut received, mut turns) = (vec![0; 1 << 20], Vec::new());
        let reading = async {
            while turns.iter().sum::<usize>() < REQUESTS {
                yield_now().await;
                if let Some(read) = client.stream.read(&mut received).now_or_never() {
                    let answers = answers(str::from_utf8(&received[..read.unwrap()]).unwrap());
                    assert!(!answers.is_empty(), "{path}: the connection ends after {turns:?}");
                    turns.push(answers.len());
                }
            }
        };
        timeout(PATIENCE, reading).await.expect("all are answered");
        // The first ones were answered while the flood was written.
        let later = &turns[1..];
        assert!(later.len() > 10 && later.iter().all(|answers| *answers <= most), "{path}: {turns:?}");
    }
}

#[tokio::test]
async fn a_client_that_expects_100_gets_it_once() {
    const HEAD: &str = "POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    let mut client = Client::connect();
    client.send(HEAD).await;
    assert_eq!(client.until("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("hello").await;
    assert_eq!(answers(&client.rest().await), [("200", "/a", "5")]);

    // It is not sent if some of the body has arrived, with HTTP/1.0, or if the body isn't read.
    for (request, answer) in [
        (format!("{HEAD}h"), ("200", "/a", "5")),
        (HEAD.replace("/a HTTP/1.1", "/own HTTP/1.1"), ("200", "", "")),
        (HEAD.replace("Host: a", "Host: a\r\nHost: b"), ("400", "", "")),
    ] {
        let mut client = Client::connect();
        client.send(request).await;
        client.send("ello").await;
        assert_eq!(answers(&client.rest().await), [answer]);
    }
    let mut client = Client::connect();
    client.send(HEAD.replace("/1.1", "/1.0")).await;
    client.send("hello").await;
    assert!(client.rest().await.starts_with("HTTP/1.0 200 OK\r\n"));
}

#[tokio::test]
async fn an_http_1_0_connection_is_kept_on_request() {
    let mut client = Client::connect();
    for _ in 0..2 {
        client.send("GET /own HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").await;
        let answer = client.until("own").await;
        assert!(
            answer.starts_with("HTTP/1.0 200 OK\r\n") && answer.contains("\r\nconnection: keep-alive\r\n")
        );
    }
    client.send("GET /own HTTP/1.0\r\n\r\n").await;
    let answer = client.rest().await;
    assert!(answer.ends_with("\r\n\r\nown") && !answer.contains("connection"), "{answer:?}");
}

#[tokio::test]
async fn an_unread_body_is_skipped_only_if_it_has_arrived() {
    let next = "GET /own HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let head = "POST /own HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
    let mut client = Client::connect();
    client.send(format!("{head}hello{next}")).await;
    assert_eq!(client.rest().await.matches("\r\n\r\nown").count(), 2);

    let mut client = Client::connect();
    client.send(format!("{head}hell")).await;
    let answer = client.until("own").await;
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer:?}");
    client.send(format!("o{next}")).await;
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn a_closing_connection_answers_the_current_request() {
    let client = Client::connect();
    yield_now().await;
    client.watch.end();
    assert_eq!(client.rest().await, "");

    let mut client = Client::connect();
    client.send("GET /own HTTP/1.1\r\nHo").await;
    client.watch.end();
    client.send("st: a\r\n\r\n").await;
    assert!(client.rest().await.contains("\r\nconnection: close\r\n"));
}

#[tokio::test]
async fn an_invalid_request_is_answered_and_the_rest_discarded() {
    let large = "x".repeat(1 << 20);
    let target = format!("GET /{large}");
    let field = format!("GET / HTTP/1.1\r\nX: {large}");
    let fields = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(101));
    for (request, status) in [
        ("GET / HTTP/1.1\r\nno field\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\nx", "400"),
        (&target, "414"),
        (&field, "431"),
        (&fields, "431"),
    ] {
        let mut client = Client::connect();
        client.send(request).await;
        client.stream.shutdown().await.unwrap();
        let received = client.rest().await;
        assert_eq!(answers(&received), [(status, "", "")], "{received:?}");
        assert!(received.contains("\r\nconnection: close\r\n") && received.ends_with("}\n"), "{received:?}");
    }
}
