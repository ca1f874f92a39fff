//! Clients that take as much time, connections and memory as they can don't affect others.

use std::{
    io::{Read, Write},
    mem,
    net::TcpStream,
    sync::{
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    forward_all,
    harness::{
        PATIENCE,
        client::{Answer, Client, connect_with_buffer},
        frames::{
            DATA, End, Frames, HEADERS, INITIAL_WINDOW, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame,
            get,
        },
        gateway::Gateway,
        judge::{in_time, judge, within},
        upstream::Upstream,
        wait_until,
        wire::{Wire, WireUpstream},
    },
};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup";
/// The time limit for silent clients, in `timeouts` of the gateways here.
const IDLE: Duration = Duration::from_millis(500);
/// The time between two bytes of a slow client: each is in time, and all together are far too late.
const TRICKLE: Duration = Duration::from_millis(50);
/// What the gateway's memory may grow by, whatever is sent to it.
const GROWTH_KIB: usize = 8 << 10;

/// A gateway with one worker and these keys of `[server]`, before an upstream.
fn start(keys: &str, url: &str) -> Gateway {
    Gateway::start(&format!("[server]\nworkers = 1\n{keys}\n{}", forward_all(url, "")))
}

/// Starts a gateway before an upstream, which answers by itself at `/free`.
fn start_with_free(workers: u32, connections: u32, url: &str) -> Gateway {
    let free = "[[routes]]\npath = \"/free\"\nrespond = { status = 204 }\n";
    let server = format!("[server]\nworkers = {workers}\nmax_connections = {connections}\n");
    Gateway::start(&[server, forward_all(url, ""), free.to_owned()].concat())
}

/// A gateway whose only connection is in use.
struct Full {
    upstream: WireUpstream,
    release: mpsc::Sender<()>,
    gateway: Gateway,
    busy: Client,
}

impl Full {
    fn start() -> Self {
        let (upstream, release) = WireUpstream::answering_when_told(OK);
        let gateway = start("max_connections = 1\ntimeouts = { header = \"1h\" }", &upstream.url());
        let mut busy = gateway.client();
        busy.send(GET);
        wait_until("the connection is in use", || upstream.connections() == 1);
        Self { upstream, release, gateway, busy }
    }

    /// Lets the request in flight end.
    fn end(mut self) {
        self.release.send(()).unwrap();
        assert_eq!(self.busy.answer().status, 200);
    }
}

/// Starts a gateway that answers by itself, on so many connections.
fn answering(workers: u32, connections: u32) -> Gateway {
    Gateway::start(&format!(
        "[server]\nworkers = {workers}\nmax_connections = {connections}\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}\n"
    ))
}

fn impatient(url: &str) -> Gateway {
    start("timeouts = { idle = \"500ms\" }", url)
}

/// An upstream that reads to the end of each connection, and tells when that is there.
fn until_the_end(answer: &'static [u8]) -> (WireUpstream, mpsc::Receiver<()>) {
    let (ended, end) = mpsc::channel();
    let upstream = WireUpstream::start(move |mut wire: Wire| {
        wire.request();
        wire.send(answer);
        wire.wait_for_end();
        ended.send(()).unwrap();
    });
    (upstream, end)
}

/// Sends these bytes one by one until anything comes, and tells how long that took.
fn trickle(client: &mut Client, bytes: &[u8]) -> Duration {
    let since = Instant::now();
    let mut writer = client.writer();
    for byte in bytes {
        if client.hears_within(TRICKLE) {
            return since.elapsed();
        }
        // The gateway may close meanwhile.
        let _ = writer.write_all(&[*byte]);
    }
    panic!("all of it was taken in {:?}", since.elapsed());
}

fn assert_turned_away(answer: &Answer) {
    assert_eq!((answer.status, &answer.json()["code"]), (503, &"overloaded".into()), "{answer:?}");
    assert_eq!((answer.header("retry-after"), answer.header("connection")), (Some("1"), Some("close")));
}

#[test]
fn who_takes_nothing_of_an_answer_is_cut_off_and_the_connection_upstream_freed() {
    let (upstream, end) = WireUpstream::without_end();
    let gateway = impatient(&upstream.url());
    let mut client = gateway.client();
    client.send(GET);
    end.recv_timeout(PATIENCE).expect("the connection upstream ends");
    assert!(client.rest().len() < 99_999_999);
}

#[test]
fn a_stream_may_be_silent() {
    let silence = 3 * IDLE;
    let upstream = WireUpstream::start(move |mut wire| {
        wire.request();
        thread::sleep(silence);
        wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 6\r\n\r\none");
        thread::sleep(silence);
        wire.send(b"two");
    });
    let gateway = impatient(&upstream.url());
    assert_eq!(gateway.get("/").text(), "onetwo");
}

#[test]
fn a_body_that_trickles_is_408_and_the_connection_upstream_freed() {
    let (upstream, end) = until_the_end(b"");
    let gateway = impatient(&upstream.url());
    let mut client = gateway.client();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    let took = trickle(&mut client, &[b'x'; 1000]);
    let answer = client.answer();
    assert_eq!((answer.status, &answer.json()["code"]), (408, &"request-timeout".into()));
    assert!(took >= IDLE, "cut after {took:?}");
    assert!(client.is_closed());
    end.recv_timeout(PATIENCE).expect("the connection upstream ends");
}

#[test]
fn a_body_that_stops_is_408() {
    let (upstream, end) = until_the_end(b"");
    let echo = "[server]\ntimeouts = { idle = \"500ms\" }\n[upstreams.api]\nbuiltin = \"echo\"\n\
                [[routes]]\npath = \"/\"\nupstream = \"api\"\n";
    for gateway in [impatient(&upstream.url()), Gateway::start(echo)] {
        let mut client = gateway.client();
        // What it has sent at once is no reason to wait longer for the rest.
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n");
        client.send(&[b'x'; 4 << 20]);
        assert_eq!(client.answer().status, 408);
    }
    end.recv_timeout(PATIENCE).expect("the connection upstream ends");
}

#[test]
fn a_body_that_trickles_beside_its_answer_is_cut_off() {
    let (upstream, end) = until_the_end(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome");
    let gateway = impatient(&upstream.url());
    let mut client = gateway.client();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    assert_eq!(client.head().status, 200);
    assert_eq!(client.bytes(4), b"some");
    trickle(&mut client, &[b'x'; 1000]);
    assert!(client.is_closed());
    end.recv_timeout(PATIENCE).expect("the connection upstream ends");
}

#[test]
fn a_body_that_comes_steadily_may_take_its_time() {
    let upstream = Upstream::mirror();
    // All pieces together take twice as long. A busy machine may hold one of them up.
    let gateway = start("timeouts = { idle = \"1s\" }", &upstream.url());
    let mut client = gateway.client();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n");
    let mut writer = client.writer();
    let upload = thread::spawn(move || {
        for _ in 0..40 {
            thread::sleep(TRICKLE);
            writer.write_all(&[b'x'; 1000]).unwrap();
        }
    });
    assert_eq!(client.answer().body.len(), 40_000);
    upload.join().unwrap();
}

#[test]
fn a_head_that_trickles_is_cut_off() {
    let gateway = start("timeouts = { header = \"500ms\" }", &Upstream::hello().url());
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Slow: {}", "x".repeat(1000));
    let mut other = gateway.client();
    assert_eq!(other.get("/").status, 200);
    for mut client in [gateway.client(), other] {
        client.send(b"GET");
        let took = trickle(&mut client, &head.as_bytes()[3..]);
        assert_eq!(client.rest(), b"");
        assert!(took >= IDLE, "cut after {took:?}");
        assert_eq!(gateway.get("/").status, 200);
    }
}

#[test]
fn who_connects_and_says_nothing_is_cut_off() {
    let gateway = start("timeouts = { header = \"200ms\" }", &Upstream::hello().url());
    let since = Instant::now();
    assert!(gateway.client().is_closed());
    assert!(since.elapsed() < PATIENCE / 2, "{:?}", since.elapsed());
}

#[test]
fn between_requests_a_connection_may_idle_longer_than_a_head_may_take() {
    let gateway = start("timeouts = { header = \"1s\", idle = \"3s\" }", &Upstream::hello().url());
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    thread::sleep(Duration::from_millis(1_500));
    let since = Instant::now();
    assert_eq!(client.get("/").status, 200);
    assert!(client.is_closed());
    let idled = since.elapsed();
    assert!((Duration::from_secs(3)..PATIENCE).contains(&idled), "{idled:?}");
}

#[test]
fn of_too_many_connections_the_one_that_idles_longest_goes() {
    let gateway = start("max_connections = 2", &Upstream::hello().url());
    let mut idle = [gateway.client(), gateway.client()];
    for client in &mut idle {
        assert_eq!(client.get("/").status, 200);
    }
    let [mut first, mut second] = idle;
    assert_eq!(first.get("/").status, 200);
    let mut third = gateway.client();
    assert_eq!(third.get("/").status, 200);
    assert!(second.is_closed());
    assert_eq!(first.get("/").status, 200);
    assert_eq!(third.get("/").status, 200);
}

/// Waits for longer than the request of a new connection is waited for. Until then, it makes no room.
fn wait_until_it_is_idle() {
    thread::sleep(Duration::from_millis(200));
}

#[test]
fn who_has_said_nothing_yet_makes_room_too() {
    let gateway = start("max_connections = 1\ntimeouts = { header = \"1h\" }", &Upstream::hello().url());
    let mut silent = gateway.client();
    wait_until_it_is_idle();
    assert_eq!(gateway.get("/").status, 200);
    assert!(silent.is_closed());
}

#[test]
fn who_has_only_agreed_on_http_2_makes_room_too() {
    let gateway = start("max_connections = 1\ntimeouts = { header = \"1h\" }", &Upstream::hello().url());
    let mut silent = TcpStream::connect(gateway.address()).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    silent.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).unwrap();
    silent.read_exact(&mut [0; 9]).expect("the gateway has its own settings");
    wait_until_it_is_idle();
    assert_eq!(gateway.get("/").status, 200);
    silent.read_to_end(&mut Vec::new()).expect("the gateway closes the connection");
}

#[test]
fn beyond_all_connections_in_use_clients_are_told_to_come_back() {
    let (upstream, release) = WireUpstream::answering_when_told(OK);
    let gateway = start("max_connections = 2", &upstream.url());
    let mut busy = [gateway.client(), gateway.client()];
    busy.iter_mut().for_each(|client| client.send(GET));
    wait_until("all connections are in use", || upstream.connections() == 2);
    for _ in 0..100 {
        let mut client = gateway.client();
        assert_turned_away(&client.get("/"));
        assert!(client.is_closed());
    }
    gateway.wait_for_log("all connections are in use");
    assert_eq!(gateway.log().matches("all connections are in use").count(), 1, "{}", gateway.log());
    release.send(()).unwrap();
    release.send(()).unwrap();
    assert_eq!(busy.each_mut().map(|client| client.answer().status), [200, 200]);
    // They idle now.
    release.send(()).unwrap();
    assert_eq!(gateway.get("/").status, 200);
}

#[test]
fn of_a_burst_at_the_bound_each_is_served_or_told_to_come_back() {
    let (upstream, release) = WireUpstream::answering_when_told(OK);
    let gateway = start("max_connections = 2", &upstream.url());
    // All of them are there when the gateway looks.
    gateway.pause();
    let mut burst: Vec<_> = (0..40).map(|_| gateway.client()).collect();
    burst.iter_mut().for_each(|client| client.send(GET));
    gateway.resume();
    wait_until("all connections are in use", || upstream.connections() == 2);
    (0..2).for_each(|_| release.send(()).unwrap());
    burst.retain_mut(Client::is_closed);
    assert_eq!(burst.len(), 0, "got no answer");
}

/// Their requests have come, though a worker that stands still again and again takes a while to look at them.
#[test]
fn of_a_larger_burst_each_is_served_too() {
    let gateway = answering(1, 500);
    gateway.pause();
    let mut burst: Vec<_> = (0..2_000).map(|_| gateway.client()).collect();
    burst.iter_mut().for_each(|client| client.send(GET));
    for _ in 0..20 {
        gateway.resume();
        thread::sleep(Duration::from_millis(5));
        gateway.pause();
        thread::sleep(Duration::from_millis(30));
    }
    gateway.resume();
    // Those that have their answer leave.
    let closed = burst.into_iter().filter_map(|mut client| client.is_closed().then_some(()));
    assert_eq!(closed.count(), 0, "got no answer");
}

/// Connections whose next requests have come stay, though the gateway hasn't looked at them when others need room.
#[test]
fn who_asks_again_makes_no_room() {
    let gateway = answering(1, 200);
    let mut kept: Vec<_> = (0..150).map(|_| gateway.client()).collect();
    assert!(kept.iter_mut().all(|client| client.get("/").status == 204));
    gateway.pause();
    kept.iter_mut().for_each(|client| client.send(GET));
    let _others: Vec<_> = (0..400).map(|_| gateway.client()).collect();
    gateway.resume();
    assert!(kept.iter_mut().all(|client| client.answer().status == 204));
}

/// Neither the silent connections that are accepted nor those that wait for that stay in the way of those who ask.
#[test]
fn silent_connections_beyond_all_slots_keep_nobody_out() {
    let gateway = answering(1, 50);
    let _silent: Vec<_> = (0..1_000).map(|_| gateway.client()).collect();
    // Its turn comes behind theirs, and maybe before the last of them are idle.
    gateway.get("/");
    thread::sleep(Duration::from_millis(300));
    for _ in 0..20 {
        assert_eq!(gateway.get("/").status, 204);
    }
}

/// Neither silence nor half a head takes a place or keeps one. A connection that gave its place takes it back with its next request.
#[test]
fn a_request_takes_the_place_of_a_connection_that_waits() {
    let half = b"GET / HTTP/1.1\r\nHos";
    for workers in [1, 2] {
        let gateway = answering(workers, 1);
        // None of them is to become idle, and so make room, before the last one has come. The machine may take longer for that.
        let come = |_| {
            gateway.pause();
            let mut clients = [gateway.client(), gateway.client(), gateway.client()];
            gateway.resume();
            assert_eq!(clients[2].get("/").status, 204);
            let are_open = clients.iter_mut().all(|client| !client.hears_within(TRICKLE));
            are_open.then_some(clients)
        };
        let [mut silent, mut first, mut second] = (0..20).find_map(come).expect("all stay open");
        for _ in 0..2 {
            first.send(half);
            assert_eq!(second.get("/").status, 204);
            first.send(&GET[half.len()..]);
            assert_eq!(first.answer().status, 204);
        }
        silent.send(GET);
        assert_eq!(silent.answer().status, 204);
    }
}

/// While silent connections come in batches, every request is served.
#[test]
fn silent_connections_in_batches_keep_nobody_out() {
    const BUSY: usize = 150;
    let (upstream, release) = WireUpstream::answering_when_told(OK);
    let gateway = start_with_free(2, 200, &upstream.url());
    let mut busy: Vec<_> = (0..BUSY).map(|_| gateway.client()).collect();
    busy.iter_mut().for_each(|client| client.send(GET));
    wait_until("they are in use", || upstream.connections() == BUSY);
    for _ in 0..5 {
        let _silent: Vec<_> = (0..300).map(|_| gateway.client()).collect();
        let since = Instant::now();
        while since.elapsed() < Duration::from_millis(400) {
            assert_eq!(gateway.get("/free").status, 204);
        }
    }
    busy.iter().for_each(|_| release.send(()).unwrap());
    assert!(busy.iter_mut().all(|client| client.answer().status == 200));
}

#[test]
fn who_is_turned_away_makes_no_room() {
    let full = Full::start();
    let mut silent = full.gateway.client();
    wait_until_it_is_idle();
    assert_eq!(full.gateway.get("/").status, 503);
    assert!(silent.is_closed());
    assert_eq!(full.upstream.connections(), 1);
    full.end();
}

/// Connections whose requests break off don't hold up the 503s of others until they are late.
#[test]
fn heads_that_break_off_delay_no_503() {
    judge(TRICKLE, || {
        let full = Full::start();
        let mut halves: Vec<_> = (0..1_000).map(|_| full.gateway.client()).collect();
        halves.iter_mut().for_each(|client| client.send(b"GET / HTTP/1.1\r\nHos"));
        let since = Instant::now();
        for _ in 0..5 {
            assert_turned_away(&full.gateway.get("/"));
        }
        let waited = since.elapsed();
        full.end();
        within(waited, Duration::from_secs(2), "turning away five")
    });
}

/// Connections that got their 503 over HTTP/2, and whose clients don't confirm that, don't hold up the 503s of others.
#[test]
fn who_keeps_a_connection_after_a_503_delays_no_other() {
    let full = Full::start();
    let mut kept: Vec<_> =
        (0..64).map(|_| Frames::connect_with(full.gateway.address(), &[(INITIAL_WINDOW, 0)])).collect();
    kept.iter_mut().for_each(|client| client.ask(1, &get("/", &[])));
    let since = Instant::now();
    assert_turned_away(&full.gateway.get("/"));
    let waited = since.elapsed();
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    full.end();
}

/// Connections from which the gateway discards the rest of a request make room.
#[test]
fn what_follows_a_400_delays_nobody() {
    let gateway = answering(1, 1);
    let mut garbled: Vec<_> = (0..500).map(|_| gateway.client()).collect();
    garbled.iter_mut().for_each(|client| client.send(b"GARBAGE\r\n\r\n"));
    let since = Instant::now();
    assert_eq!(gateway.get("/").status, 204);
    let waited = since.elapsed();
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

/// An upstream that answers one request with a body of this length.
fn answering_with(length: usize) -> WireUpstream {
    WireUpstream::start(move |mut wire| {
        wire.request();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        wire.send(&[head.as_bytes(), &vec![b'x'; length]].concat());
        wire.wait_for_end();
    })
}

/// The client hasn't received all of the response, which the gateway has sent, when its connection makes room.
#[test]
fn a_response_over_http_2_is_complete_though_others_need_room() {
    const LENGTH: usize = 100_000;
    let upstream = answering_with(LENGTH);
    let gateway = start_with_free(1, 1, &upstream.url());
    let stream = connect_with_buffer(gateway.address(), 4 << 10);
    let mut client = Frames::on(stream, &[(INITIAL_WINDOW, 1 << 20)]);
    let more = (1_u32 << 20).to_be_bytes();
    client.send(WINDOW_UPDATE, 0, 0, &more);
    client.ask(1, &get("/", &[]));
    wait_until_it_is_idle();
    assert_eq!(gateway.get("/free").status, 204);
    client.send(WINDOW_UPDATE, 0, 0, &more);
    wait_until_it_is_idle();
    let told = client.told(1);
    assert_eq!((told.end, told.body.len()), (End::Whole, LENGTH));
}

/// The client reads 25 KB a second, and its window holds the rest in the gateway, which has all of the response at once.
/// Once the window admits all of it, the client reads at once: what the system alone holds isn't waited for.
#[test]
fn others_make_no_room_of_a_client_that_still_receives_over_http_2() {
    const LENGTH: usize = 150_000;
    /// The window of a client that states none (RFC 9113, section 6.9.2).
    const WINDOW: usize = 65_535;
    let upstream = answering_with(LENGTH);
    let gateway = start_with_free(1, 1, &upstream.url());
    let mut client = Frames::connect(gateway.address());
    client.ask(1, &get("/", &[]));
    assert_eq!(client.next_of(HEADERS).status(), 200);
    let (address, has_ended) = (gateway.address(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(SeqCst) {
                let _ = Client::connect(address).get("/free");
                thread::sleep(TRICKLE);
            }
        });
        let mut received = 0;
        while received < LENGTH {
            let data = client.next().filter(|frame| frame.kind != RST_STREAM);
            let Some(data) = data else {
                has_ended.store(true, SeqCst);
                panic!("cut off after {received} bytes");
            };
            if data.kind == DATA {
                received += data.payload.len();
                let more = (data.payload.len() as u32).to_be_bytes();
                client.send(WINDOW_UPDATE, 0, 1, &more);
                client.send(WINDOW_UPDATE, 0, 0, &more);
                if received + WINDOW < LENGTH {
                    thread::sleep(Duration::from_millis(data.payload.len() as u64 / 25));
                }
            }
        }
        has_ended.store(true, SeqCst);
    });
}

#[test]
fn a_megabyte_of_header_is_refused_and_not_kept() {
    let upstream = Upstream::hello();
    let gateway = start("", &upstream.url());
    assert_eq!(gateway.get("/").status, 200);
    let before = gateway.memory_kib("VmHWM");
    let clients = (0..30).map(|_| gateway.client()).collect::<Vec<_>>();
    for mut client in clients {
        let mut writer = client.writer();
        writer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nX-Long: ").unwrap();
        let upload = thread::spawn(move || {
            // The gateway closes before it has all of it.
            let _ = writer.write_all(&[b'x'; 1 << 20]);
        });
        assert_eq!(client.head().status, 431);
        upload.join().unwrap();
    }
    let growth = gateway.grew_kib(before);
    assert!(growth < GROWTH_KIB, "grew by {growth} KiB");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn requests_that_are_sent_ahead_wait_their_turn_outside() {
    const REQUESTS: usize = 10_000;
    static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);
    let upstream = WireUpstream::start(|mut wire| {
        while wire.request().is_some() {
            assert_eq!(IN_FLIGHT.fetch_add(1, SeqCst), 0, "two requests of a connection at a time");
            IN_FLIGHT.fetch_sub(1, SeqCst);
            wire.send(OK);
        }
    });
    let gateway = start("", &upstream.url());
    assert_eq!(gateway.get("/").status, 200);
    let before = gateway.memory_kib("VmHWM");
    let mut client = gateway.client();
    let mut writer = client.writer();
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let upload = thread::spawn(move || {
        let requests = GET.repeat(REQUESTS);
        for bytes in requests.chunks(16 << 10) {
            writer.write_all(bytes).unwrap();
            WRITTEN.fetch_add(bytes.len(), SeqCst);
        }
    });
    // The answers fill what the system buffers, and then the requests do.
    let mut last = usize::MAX;
    wait_until("nothing more is taken", || {
        thread::sleep(Duration::from_millis(300));
        mem::replace(&mut last, WRITTEN.load(SeqCst)) == last
    });
    let growth = gateway.grew_kib(before);
    assert!(growth < GROWTH_KIB, "grew by {growth} KiB");
    for _ in 0..REQUESTS {
        assert_eq!(client.answer().status, 200);
    }
    upload.join().unwrap();
}

/// At 1 MB/s the system would ask for more of an answer every second, if it buffered as much as it can.
#[test]
fn who_takes_an_answer_slowly_but_steadily_gets_all_of_it() {
    const LENGTH: usize = 5 << 20;
    let upstream = WireUpstream::start(|mut wire| {
        wire.request();
        wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes());
        wire.send(&vec![b'x'; LENGTH]);
        wire.wait_for_end();
    });
    let gateway = impatient(&upstream.url());
    // A client that the machine keeps waiting isn't steady.
    judge(IDLE / 4, || {
        let mut client = connect_with_buffer(gateway.address(), 128 << 10);
        client.write_all(GET).unwrap();
        let mut taken = 0;
        let mut piece = vec![0; 50 << 10];
        while taken < LENGTH {
            thread::sleep(TRICKLE);
            let length = client.read(&mut piece).unwrap_or(0);
            in_time(length > 0, || format!("cut off after {taken} bytes"))?;
            taken += length;
        }
        Ok(())
    });
}
