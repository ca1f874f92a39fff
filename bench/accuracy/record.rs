//! The record of a server: the file to which it appends each write before it replies (Redis' AOF). A kill loses
//! nothing of it, and it can be read through the open file even after the server has begun another one.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{BufRead, BufReader, Seek},
};

use tollgate_limiter::{Algorithm, Quota};

use crate::harness::{redis::Redis, resp::Value, wait_until};

/// The record of one server, from when it was empty.
pub(crate) struct Record(File);

/// The granted permits of each bucket, by the store's time in microseconds. Those of a fixed window are all
/// at its beginning.
pub(crate) type Grants = BTreeMap<String, BTreeMap<u64, u64>>;

/// The records of all servers.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) by_server: Vec<Grants>,
    /// All grants, each once even if several servers have it.
    pub(crate) granted: Grants,
    /// Those of them that the server doesn't have which holds the bucket in the end.
    pub(crate) lost: Grants,
}

impl Record {
    /// Makes a server keep a record from now on.
    pub(crate) fn of(server: &Redis) -> Self {
        server.command(&["CONFIG", "SET", "appendonly", "yes", "appendfsync", "no"]);
        let folder = server.folder().join("appendonlydir");
        let written = || {
            let mut files = folder.read_dir().ok()?.map(|file| file.unwrap().path());
            files.find(|path| path.to_str().unwrap().ends_with(".incr.aof"))
        };
        wait_until("the server writes its file", || {
            server.info("aof_rewrite_in_progress") == "0" && written().is_some()
        });
        Self(File::open(written().unwrap()).unwrap())
    }

    /// Reads the grants of these limits.
    fn read(&self, quota: Quota) -> Grants {
        let mut reader = BufReader::new(&self.0);
        reader.rewind().unwrap();
        let mut grants = Grants::new();
        let mut states = HashMap::<Vec<u8>, State>::new();
        while !reader.fill_buf().unwrap().is_empty() {
            let command = Value::read(&mut reader);
            let words: Vec<&[u8]> = command.list().iter().map(Value::bytes).collect();
            if words[0] == b"DEL" || words[0] == b"UNLINK" {
                states.retain(|bucket, _| !words[1..].contains(&bucket.as_slice()));
            }
            let Some(state) = State::written_by(&words, quota) else { continue };
            let permits = state.granted_since(states.get(words[1]), quota);
            states.insert(words[1].to_owned(), state);
            let bucket = grants.entry(String::from_utf8(words[1].to_owned()).unwrap()).or_default();
            *bucket.entry(state.at_us).or_default() += permits;
        }
        grants
    }
}

/// The state of a bucket after a write. The headers of lua/*.lua describe the layouts.
#[derive(Clone, Copy)]
struct State {
    at_us: u64,
    /// The running total before the newest entry; the beginning of the window; unused.
    from: u64,
    /// The cost of the newest entry; the permits in use; the level.
    to: u64,
}

impl State {
    fn written_by(words: &[&[u8]], quota: Quota) -> Option<Self> {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let state = |bytes: &[u8], from: u64, to| Self { at_us: number(&bytes[..7]), from, to };
        match (quota.algorithm, words) {
            (Algorithm::SlidingWindow | Algorithm::SlidingCells { .. }, [b"ZADD", _, _, entry]) => {
                Some(state(entry, number(&entry[7..11]), number(&entry[11..15])))
            }
            (Algorithm::FixedWindow, [b"SET", _, window, ..]) => {
                Some(state(window, number(&window[..7]), number(&window[7..11])))
            }
            (Algorithm::Gcra { .. }, [b"SET", _, level, ..]) => {
                Some(Self { at_us: number(&level[7..14]), from: 0, to: number(&level[..7]) })
            }
            _ => None,
        }
    }

    /// Returns the permits granted since an earlier state.
    fn granted_since(self, before: Option<&Self>, quota: Quota) -> u64 {
        let before = before.filter(|before| before.from == self.from);
        match (quota.algorithm, before) {
            (Algorithm::Gcra { .. }, before) => {
                let drained = |before: &Self| u64::from(quota.permits) * (self.at_us - before.at_us);
                let level = before.map_or(0, |before| before.to.saturating_sub(drained(before)));
                (self.to - level) / quota.window_us
            }
            (_, before) => self.to - before.map_or(0, |before| before.to),
        }
    }
}

impl Ledger {
    /// Of limits that all count by this quota's algorithm.
    pub(crate) fn of(records: &[Record], quota: Quota) -> Self {
        let by_server = records.iter().map(|record| record.read(quota)).collect();
        let mut ledger = Self { by_server, ..Self::default() };
        for (bucket, grants) in ledger.by_server.iter().flatten() {
            let all = ledger.granted.entry(bucket.clone()).or_default();
            for (at_us, permits) in grants {
                let known = all.entry(*at_us).or_default();
                *known = (*known).max(*permits);
            }
        }
        for (bucket, all) in &ledger.granted {
            let by_server = ledger.by_server.iter().filter_map(|grants| grants.get(bucket));
            let last = by_server.max_by_key(|grants| grants.keys().next_back()).unwrap();
            let missing =
                all.iter().map(|(at_us, permits)| (*at_us, permits - last.get(at_us).unwrap_or(&0)));
            ledger.lost.insert(bucket.clone(), missing.filter(|(_, permits)| *permits > 0).collect());
        }
        ledger
    }
}
