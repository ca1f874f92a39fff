//! Hostile environments: a store with nonsense replies, and a panic while a request is processed.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Instant,
};

use tollgate::{config::Config, gateway::Gateway as Built, server::Server};
use tollgate_limiter::Limiter;
use tracing::{Event, Level, Metadata, Subscriber, span, subscriber::Interest};

use crate::harness::{PATIENCE, client::Client, gateway::Gateway, wait_until};

/// What a script of one charge answers: the time, one granted and made, four left, a second until more, no delay.
const GRANTED: [i64; 6] = [1_700_000_000_000_000, 1, 1, 4, 1_000_000, 0];
/// Begins an integer of eight bytes in MessagePack.
const INT_64: u8 = 0xd3;

/// Returns a script's answer.
fn answer_of(numbers: &[i64]) -> Vec<u8> {
    let packed: Vec<u8> =
        numbers.iter().flat_map(|number| [&[INT_64][..], &number.to_be_bytes()].concat()).collect();
    bulk(&packed)
}

fn bulk(packed: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", packed.len()).as_bytes(), packed, b"\r\n"].concat()
}

/// A server in place of Redis that answers scripts with given replies.
struct Impostor {
    port: u16,
    answer: Arc<Mutex<Vec<u8>>>,
}

impl Impostor {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let impostor = Self {
            port: listener.local_addr().unwrap().port(),
            answer: Arc::new(Mutex::new(answer_of(&GRANTED))),
        };
        let answer = impostor.answer.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let answer = answer.clone();
                thread::spawn(move || serve(&stream.unwrap(), &answer));
            }
        });
        impostor
    }

    fn answer(&self, bytes: impl Into<Vec<u8>>) {
        *self.answer.lock().unwrap() = bytes.into();
    }
}

/// Answers commands until the connection ends.
fn serve(stream: &TcpStream, answer: &Mutex<Vec<u8>>) {
    let mut from = BufReader::new(stream);
    while let Some(words) = command(&mut from) {
        let answer = match words[0].to_ascii_uppercase().as_str() {
            "EVALSHA" | "EVAL" => answer.lock().unwrap().clone(),
            "PING" => b"+PONG\r\n".to_vec(),
            _ => b"-ERR unknown command\r\n".to_vec(),
        };
        let mut stream = stream;
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

/// The words of the next command, unless the connection has ended.
fn command(from: &mut impl BufRead) -> Option<Vec<String>> {
    let count = length(from)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; length(from)? + 2];
        from.read_exact(&mut word).ok()?;
        words.push(String::from_utf8_lossy(&word).trim_end().to_owned());
    }
    Some(words)
}

/// What `*2` or `$5` says.
fn length(from: &mut impl BufRead) -> Option<usize> {
    let mut line = String::new();
    from.read_line(&mut line).ok()?;
    line.get(1..)?.trim().parse().ok()
}

#[test]
fn a_store_that_answers_nonsense_is_one_that_does_not_answer() {
    let impostor = Impostor::start();
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\n[store]\nurl = \"redis://127.0.0.1:{}\"\non_failure = \"deny\"\n\
         [limits.l]\nkey = \"header:x-key\"\nrate = \"5/s\"\nwait = \"20ms\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}\nlimits = [\"l\"]\n",
        impostor.port
    ));
    let mut asked = 0;
    let mut ask = || {
        asked += 1;
        let since = Instant::now();
        let answer = gateway.ask(&format!("GET /\nX-Key: {asked}"));
        assert!(since.elapsed() < PATIENCE);
        answer.status
    };
    let nested = ["*1\r\n".repeat(100), ":1\r\n".to_owned()].concat();
    let mut answers: Vec<Vec<u8>> = Vec::new();
    for answer in [
        "*0\r\n",
        "*-1\r\n",
        "*1\r\n:1\r\n",
        ":5\r\n",
        "+OK\r\n",
        "$-1\r\n",
        "$3\r\nabc\r\n",
        "$0\r\n\r\n",
        "*6\r\n:1\r\n:1\r\n:1\r\n:4\r\n:1\r\n:0\r\n",
        "-ERR no\r\n",
        "-MOVED 1 somewhere:1\r\n",
        "-MOVED\r\n",
        "-NOSCRIPT\r\n",
        "-\r\n",
        &nested,
        // Not Redis' protocol, or more of it than ever comes
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "?\r\n",
        "\0\r\n",
        ":99999999999999999999\r\n",
        "*99999999999\r\n:1\r\n",
        "*9223372036854775807\r\n:1\r\n",
        "$9223372036854775807\r\nabc",
        "$-7\r\n",
        "*6\r\n:1",
    ] {
        answers.push(answer.into());
    }
    // In MessagePack, but text or a map where a number is due, a number too many, one too few, fewer than no requests, half a number.
    answers.extend([
        bulk(b"\x96\x01\x01\x01\x04\x01\xa10"),
        bulk(b"\x96\x01\x01\x01\x04\x01\x80"),
        answer_of(&[1, 1, 1, 4, 1, 0, 0]),
        answer_of(&[1, 1, 1, 4, 1]),
        answer_of(&[1, -1, 1, 4, 1, 0]),
        bulk(b"\x96\x01\x01\x01\x04\x01\xd3"),
    ]);
    for answer in answers {
        impostor.answer(&answer[..]);
        assert_eq!(ask(), 503, "{}", answer.escape_ascii());
        impostor.answer(answer_of(&GRANTED));
        wait_until("a sound answer is believed again", || ask() == 204);
    }
    assert!(gateway.memory_kib("VmHWM") < 200 << 10, "{} KiB", gateway.memory_kib("VmHWM"));
}

/// Numbers of the right shape, which may mean anything: they are believed, and do no more.
#[test]
fn a_store_that_answers_absurd_numbers_is_believed_and_no_more() {
    let impostor = Impostor::start();
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\nratelimit_headers = \"both\"\n[store]\nurl = \"redis://127.0.0.1:{}\"\n\
         [limits.l]\nkey = \"header:x-key\"\nrate = \"5/s\"\nwait = \"20ms\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}\nlimits = [\"l\"]\n",
        impostor.port
    ));
    let refused = [1_700_000_000_000_000, 0, 0, 0, 1_000_000, 500_000];
    let mut answers = Vec::new();
    for absurd in [i64::MIN, -1, 0, 2, i64::MAX] {
        answers.push([absurd; 6]);
        for usual in [GRANTED, refused] {
            for at in 0..6 {
                let mut answer = usual;
                answer[at] = absurd;
                answers.push(answer);
            }
        }
    }
    for (number, answer) in answers.iter().enumerate() {
        impostor.answer(answer_of(answer));
        // Twice, so that what is remembered of the first counts for the second.
        for _ in 0..2 {
            let status = gateway.ask(&format!("GET /\nX-Key: {number}")).status;
            assert!(matches!(status, 204 | 429 | 503), "{answer:?}: {status}");
        }
    }
    gateway.assert_not_logged("panicked");
}

/// Makes each warning of a worker a panic, which is one in the midst of its work.
struct Panics;

impl Subscriber for Panics {
    /// It depends on the thread, so each time.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && thread::current().name() == Some("worker")
    }

    fn event(&self, _: &Event<'_>) {
        panic!("as the test wants it");
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A gateway of one worker in this process, where warnings are panics. It ends with the process.
fn start_panicking(toml: &str) -> SocketAddr {
    // The first test sets it for all.
    let _ = tracing::subscriber::set_global_default(Panics);
    let toml = format!("[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\nmax_connections = 3\n{toml}");
    let (config, _) =
        Config::parse("gateway.toml", &toml, &|_| None).unwrap_or_else(|faults| panic!("{faults}"));
    let (sender, address) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let limiter = Limiter::open(&config.store).unwrap();
            let server = Server::start(&config, Built::build(&config, &limiter, None)).await.unwrap();
            sender.send(server.addresses()[0].to_string()).unwrap();
            server.run(async || {}).await;
            // It took the signals that are to end the process.
            std::process::exit(1);
        });
    });
    address.recv().unwrap().parse().unwrap()
}

#[test]
fn a_panic_ends_its_own_connection_and_gives_back_what_that_held() {
    // Nobody else gets its port, and nobody listens.
    let gone = tokio::net::TcpSocket::new_v4().unwrap();
    gone.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    // More of them than there may be connections. Each server is warned of once.
    const PANICS: usize = 5;
    let upstream = |number| {
        format!(
            "[upstreams.gone{number}]\nservers = [\"http://{}\"]\n\
             [[routes]]\npath = \"/panics{number}\"\nupstream = \"gone{number}\"\nlimits = [\"running\"]\n",
            gone.local_addr().unwrap()
        )
    };
    let address = start_panicking(&format!(
        "{}[limits.running]\nkey = \"global\"\nrate = \"1\"\nalgorithm = \"concurrency\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}\nlimits = [\"running\"]\n",
        (0..PANICS).map(upstream).collect::<String>()
    ));
    let mut other = Client::connect(address);
    for number in 0..PANICS {
        let mut client = Client::connect(address);
        client.send(format!("GET /panics{number} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        assert_eq!(client.rest(), b"");
        // On its connection of before, with the one permit that there is.
        assert_eq!(other.ask("GET /").status, 204);
    }
    assert_eq!(Client::connect(address).ask("GET /").status, 204);
}

#[test]
fn a_panic_in_a_call_of_the_store_is_the_end_of_that_call() {
    let impostor = Impostor::start();
    let address = start_panicking(&format!(
        "[store]\nurl = \"redis://127.0.0.1:{}\"\non_failure = \"deny\"\n\
         [limits.l]\nkey = \"global\"\nrate = \"5/s\"\n\
         [[routes]]\npath = \"/\"\nrespond = {{ status = 204 }}\nlimits = [\"l\"]\n",
        impostor.port
    ));
    let mut client = Client::connect(address);
    wait_until("the store has been reached", || client.ask("GET /").status == 204);
    for answer in [&b"*1\r\n:1\r\n"[..], b"-ERR another\r\n"] {
        // Such an answer is warned of.
        impostor.answer(answer);
        assert_eq!(client.ask("GET /").status, 503);
        impostor.answer(answer_of(&GRANTED));
        wait_until("a sound answer is believed again", || client.ask("GET /").status == 204);
    }
}
