//! A connection to Redis that speaks its protocol (RESP 2), for tests that make thousands of calls.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

/// A reply of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Integer(i64),
    Text(Vec<u8>),
    Error(String),
    List(Vec<Value>),
}

impl Connection {
    pub(crate) fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// Returns the reply of a server that may be gone or hang.
    pub(crate) fn try_command(port: u16, words: &[&str]) -> Option<Value> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        let mut connection = Self { stream: BufReader::new(stream) };
        connection.stream.get_mut().write_all(b"PING\r\n").ok()?;
        let mut line = String::new();
        let is_well = connection.stream.read_line(&mut line).is_ok() && line.starts_with("+PONG");
        is_well.then(|| connection.command(words))
    }

    /// Sends a command, and reads its reply.
    pub(crate) fn command<Word: AsRef<[u8]>>(&mut self, words: &[Word]) -> Value {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words.iter().map(AsRef::as_ref) {
            write!(bytes, "${}\r\n", word.len()).unwrap();
            bytes.extend(word);
            bytes.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes).unwrap();
        self.value()
    }

    /// Returns the next reply or push message.
    pub(crate) fn value(&mut self) -> Value {
        Value::read(&mut self.stream)
    }
}

impl Value {
    /// Reads a reply, and waits for it if necessary.
    pub(crate) fn read(stream: &mut impl BufRead) -> Self {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let (kind, rest) = line.trim_end().split_at_checked(1).expect("Redis answers");
        let number = || rest.parse::<i64>().unwrap();
        match kind {
            "+" => Self::Text(rest.into()),
            "-" => Self::Error(rest.to_owned()),
            ":" => Self::Integer(number()),
            "$" | "*" if number() < 0 => Self::Nil,
            "$" => {
                let mut bytes = vec![0; number() as usize + 2];
                stream.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                Self::Text(bytes)
            }
            "*" => Self::List((0..number()).map(|_| Self::read(stream)).collect()),
            _ => panic!("not RESP 2: {line:?}"),
        }
    }

    pub(crate) fn integer(&self) -> i64 {
        match self {
            Self::Integer(number) => *number,
            Self::Text(_) => self.text().parse().unwrap_or_else(|_| panic!("{self:?}")),
            _ => panic!("{self:?}"),
        }
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(self.bytes()).unwrap()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(bytes) => bytes,
            _ => panic!("{self:?}"),
        }
    }

    pub(crate) fn list(&self) -> &[Self] {
        match self {
            Self::List(values) => values,
            _ => panic!("{self:?}"),
        }
    }
}
