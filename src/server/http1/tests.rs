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
    server::{Door, Status, Terms, client::Watch, terms::TlsOfDoors},
};

const TOML: &str = "[upstreams.echo]\nbuiltin = \"echo\"\n[[routes]]\npath = \"/{*rest}\"\nupstream = \"echo\"\n\
    [[routes]]\npath = \"/own\"\nrespond = { status = 200, body = \"own\" }\n";
const PATIENCE: Duration = Duration::from_secs(10);

/// A client of a gateway whose upstream tells what it gets.
struct Client {
    stream: DuplexStream,
    watch: Arc<Watch>,
    served: JoinHandle<io::Result<()>>,
}

impl Client {
    fn connect() -> Self {
        let (config, _) = Config::parse("gateway.toml", TOML, &|_| None).unwrap();
        let gateway = Gateway::build(&config, &Limiter::open(&config.store).unwrap(), None);
        let watch = Arc::new(Watch::new());
        let connection = Connection {
            peer: ([127, 0, 0, 1], 1).into(),
            scheme: "http",
            door: Door::Requests,
            is_turned_away: false,
            terms: Arc::new(Terms::new(&config.server, TlsOfDoors::default(), &gateway, 1)),
            gateway: Arc::new(ArcSwap::from_pointee(gateway)),
            status: Arc::new(Status::new(Arc::default(), Vec::new())),
            watch: watch.clone(),
            streams: TaskTracker::new(),
        };
        let (stream, server) = duplex(1 << 20);
        let served = spawn(async move {
            let stream = Watched::new(server, connection.watch.clone());
            Http1::new(&connection, stream, Input::default()).serve().await
        });
        Self { stream, watch, served }
    }

    /// Sends this, and has the gateway look at it.
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
        for _ in 0..3 {
            yield_now().await;
        }
    }

    /// What has come until this.
    async fn until(&mut self, end: &str) -> String {
        let mut came = Vec::new();
        let read = async {
            while !came.ends_with(end.as_bytes()) {
                came.push(self.stream.read_u8().await.unwrap());
            }
        };
        let read = timeout(PATIENCE, read).await;
        let came = String::from_utf8(came).unwrap();
        read.unwrap_or_else(|_| panic!("no {end:?} in {came:?}"));
        came
    }

    /// All that comes until the connection is closed.
    async fn rest(mut self) -> String {
        let mut came = String::new();
        timeout(PATIENCE, self.stream.read_to_string(&mut came)).await.expect("it is closed").unwrap();
        drop(self.stream);
        self.served.await.unwrap().unwrap();
        came
    }
}

/// Status and, of an echo, path and bytes of the body, of answers that came one after the other.
fn answers(came: &str) -> Vec<(&str, &str, &str)> {
    came.split("HTTP/1.1 ")
        .skip(1)
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
async fn requests_are_answered_in_order_wherever_they_are_torn() {
    let requests = b"\r\nPOST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello\
        PUT /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nhe\r\n4\r\nllo!\r\n0\r\nX: y\r\n\r\n\
        GET /c HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /never HTTP/1.1\r\nHost: a\r\n\r\n";
    let expected = [("200", "/a", "5"), ("200", "/b", "6"), ("200", "/c", "0")];
    // Behind the last of them that counts.
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

#[tokio::test]
async fn who_waits_to_be_asked_for_the_body_is_asked_once() {
    const HEAD: &str = "POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    let mut client = Client::connect();
    client.send(HEAD).await;
    assert_eq!(client.until("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("hello").await;
    assert_eq!(answers(&client.rest().await), [("200", "/a", "5")]);

    // But not who has sent some of it, speaks HTTP/1.0, or is answered without it.
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
async fn a_connection_of_http_1_0_is_kept_if_that_is_asked_for() {
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
async fn a_body_that_nobody_wants_is_passed_over_only_if_it_is_there() {
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
async fn a_connection_that_is_to_end_ends_with_the_request_that_has_begun() {
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
async fn what_is_no_request_is_answered_and_what_follows_it_is_thrown_away() {
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
        let came = client.rest().await;
        assert_eq!(answers(&came), [(status, "", "")], "{came:?}");
        assert!(came.contains("\r\nconnection: close\r\n") && came.ends_with('}'), "{came:?}");
    }
}
